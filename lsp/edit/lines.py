"""The lines that an edit is about: whole lines always, and of what they belong to where nothing is selected."""

from __future__ import annotations

from collections.abc import Sequence

from tree_sitter import Node

from lsp.languages import parser_of
from prompts.text import Cursor

_DEFINITIONS = frozenset((
    "function_definition", "class_definition", "decorated_definition", "function_declaration", "method_definition",
    "class_declaration", "function_item", "impl_item", "struct_item", "enum_item", "trait_item", "method_declaration",
    "type_declaration", "class_specifier", "struct_specifier", "constructor_declaration", "interface_declaration",
))  # fmt: skip
LONGEST_PARSED = 1_000_000
"""Characters; in a longer file what nothing is selected of is the cursor's line."""


def selected_lines(start: Cursor, end: Cursor) -> tuple[int, int]:
    """(first, behind the last): the lines of which something is selected. A selection that ends where a line begins
    doesn't have that one."""
    last = end.line - 1 if end.column == 0 and end.line > start.line else end.line
    return start.line, last + 1


def definition_at(lines: Sequence[str], line: int, language: str) -> tuple[int, int]:
    """(first, behind the last): the lines of the smallest definition around a line, or that line alone."""
    text = "\n".join(lines)
    parser = parser_of(language)
    if parser is None or len(text) > LONGEST_PARSED:
        return line, line + 1
    node: Node | None = parser.parse(text.encode("utf-8", "replace")).root_node
    found = line, line + 1
    while node is not None:
        if node.type in _DEFINITIONS:
            found = node.start_point[0], node.end_point[0] + (node.end_point[1] > 0)
        node = next((c for c in node.children if c.start_point[0] <= line <= c.end_point[0]), None)
    return found
