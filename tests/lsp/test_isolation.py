"""What the language server imports: never torch, and never a module of the user's workspace."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from language_server import root_of

SCRIPT = Path(sys.executable).with_name("draftline")


@pytest.mark.parametrize("module", ["lsp.server", "lsp.completion", "prompts.ledger", "bench.lsp_client"])
def test_the_language_server_never_imports_torch(module):
    heavy = ("torch", "numpy", "tokenizers", "transformers", "gguf")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        (str(SCRIPT), "lsp"),
        (sys.executable, "-P", "-m", "server.cli", "lsp"),
        (sys.executable, "-P", "-m", "lsp.server"),
    ],
    ids=["console script", "python -P -m server.cli", "python -P -m lsp.server"],
)
def test_a_workspace_with_folders_named_as_ours_is_never_imported(own_server, folder, uri, command):
    root = root_of(folder)
    canary = root / "imported"
    for name in ("server", "lsp", "prompts", "bench", "pygls", "httpx"):
        (root / name).mkdir(parents=True, exist_ok=True)
        for module in ("__init__.py", "cli.py", "server.py", "client.py", "segments.py"):
            (root / name / module).write_text(f"open({str(canary)!r}, 'a').write(__file__)\n")
    engine = FakeEngine(folder / "run")
    editor = own_server(command=command)
    editor.initialize(root=root)
    editor.wait_ready()
    editor.open((root / "server" / "cli.py").as_uri(), "x = ")
    assert len(editor.inline((root / "server" / "cli.py").as_uri(), 0, 4)) == 1
    assert not canary.exists()
    engine.close()
