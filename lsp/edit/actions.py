"""Code actions: what the editor's menu offers for some lines."""

from __future__ import annotations

from lsprotocol import types

from lsp.completion import Outcome
from lsp.edit.editor import ABOUT, Editor, Kind
from lsp.edit.results import range_json

REWRITE = "refactor.rewrite.draftline"
IN_EDITOR = "draftline.ui.edit"
"""The command of editors that show edits themselves; they announce it (`shows_edits`)."""
_TITLES: dict[Kind, str] = {
    "edit": "edit with an instruction…",
    "fix": "fix: ",
    "docstring": "write documentation",
    "tests": "write tests",
    "explain": "explain",
}
_MOST_WORDS = 60


def code_actions(params: types.CodeActionParams, editor: Editor, *, in_editor: bool) -> list[types.CodeAction]:
    """What can be done with the lines. An edit with an instruction is for editors that can ask for one. Where nobody
    asked, there is only what mends a problem: else a light bulb would stand at every line."""
    uri, selected = params.text_document.uri, params.range.start != params.range.end
    place = editor.place(uri, params.range.start.line, params.range.start.character)
    if isinstance(place, Outcome):
        return []
    found: list[tuple[Kind, str, list[types.Diagnostic]]] = []
    for problem in params.context.diagnostics:
        words = " ".join(problem.message.split())
        found.append(("fix", words if len(words) <= _MOST_WORDS else words[:_MOST_WORDS] + "…", [problem]))
    if params.context.trigger_kind != types.CodeActionTriggerKind.Automatic:
        found += [("edit", "", [])] if in_editor and selected else []
        found.append(("docstring", "", []))
        found += [(kind, "", []) for kind in ABOUT] if editor.chat else []
    wanted = params.context.only
    actions = []
    for kind, words, problems in found:
        action_kind = types.CodeActionKind.QuickFix if kind == "fix" else REWRITE
        if wanted is not None and not any(not w or f"{action_kind}.".startswith(f"{w}.") for w in map(_word, wanted)):
            continue
        where = problems[0].range if problems else params.range
        argument = {
            "kind": kind,
            "textDocument": {"uri": uri, "version": place.snapshot.version},
            "range": range_json(where),
            "instruction": "\n".join(problem.message for problem in problems),
        }
        title = f"Draftline: {_TITLES[kind]}{words}"
        command = types.Command(title, IN_EDITOR if in_editor else f"draftline.{kind}", arguments=[argument])
        actions.append(types.CodeAction(title, kind=action_kind, diagnostics=problems or None, command=command))
    return actions


def _word(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind
