"""Which language a document is in, and its grammar: loaded when the first document in it is completed."""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath

from tree_sitter import Language, Parser

_BY_NAME = {
    "python": "python", "javascript": "javascript", "javascriptreact": "javascript", "typescript": "typescript",
    "typescriptreact": "tsx", "rust": "rust", "go": "go", "c": "c", "cpp": "cpp", "java": "java", "json": "json",
    "jsonc": "json", "shellscript": "bash", "sh": "bash", "bash": "bash", "yaml": "yaml", "markdown": "markdown",
}  # fmt: skip
"""The names that editors give to languages, to ours."""
_BY_SUFFIX = {
    "py": "python", "pyi": "python", "js": "javascript", "mjs": "javascript", "cjs": "javascript", "jsx": "javascript",
    "ts": "typescript", "mts": "typescript", "cts": "typescript", "tsx": "tsx", "rs": "rust", "go": "go", "c": "c",
    "h": "c", "cc": "cpp", "cpp": "cpp", "cxx": "cpp", "hh": "cpp", "hpp": "cpp", "java": "java", "json": "json",
    "sh": "bash", "bash": "bash", "yml": "yaml", "yaml": "yaml", "md": "markdown",
}  # fmt: skip


def language_of(name: str, path: str | None) -> str:
    """Our name of a language, from the editor's or else from the file's; empty for one that isn't known."""
    by_path = _BY_SUFFIX.get(PurePosixPath(path or "").suffix[1:].lower(), "")
    return _BY_NAME.get(name.lower(), by_path)


@cache
def parser_of(language: str) -> Parser | None:
    """None for a language without a grammar here."""
    grammar = _grammar(language)
    return Parser(Language(grammar)) if grammar is not None else None


def _grammar(language: str) -> object | None:
    match language:
        case "python":
            import tree_sitter_python

            return tree_sitter_python.language()
        case "javascript":
            import tree_sitter_javascript

            return tree_sitter_javascript.language()
        case "typescript" | "tsx":
            import tree_sitter_typescript

            typescript = tree_sitter_typescript
            return typescript.language_tsx() if language == "tsx" else typescript.language_typescript()
        case "rust":
            import tree_sitter_rust

            return tree_sitter_rust.language()
        case "go":
            import tree_sitter_go

            return tree_sitter_go.language()
        case "c":
            import tree_sitter_c

            return tree_sitter_c.language()
        case "cpp":
            import tree_sitter_cpp

            return tree_sitter_cpp.language()
        case "java":
            import tree_sitter_java

            return tree_sitter_java.language()
        case "json":
            import tree_sitter_json

            return tree_sitter_json.language()
        case "bash":
            import tree_sitter_bash

            return tree_sitter_bash.language()
        case "yaml":
            import tree_sitter_yaml

            return tree_sitter_yaml.language()
        case "markdown":
            import tree_sitter_markdown

            capsule: object = tree_sitter_markdown.language()  # its module has no types
            return capsule
        case _:
            return None
