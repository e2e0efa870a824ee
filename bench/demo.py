"""``make demo``: one real completion in a real file, through the language server as an editor would ask for it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from bench.lsp_client import LspClient, LspError, NoEngine, ServerGone
from server.process.places import MAX_SOCKET_PATH, RUNTIME_DIR_VARIABLE, Places
from server.process.stop import stop_engine

EXAMPLES = Path(__file__).parent.parent / "examples"
FILE, LINE, COLUMN = "inventory.py", 47, 15
"""Where the ghost text is asked for, both from 1."""
CONTEXT_LINES = 12
FIELDS = ("text", "reason", "ttft_ms", "prefilled", "reused", "drafted", "accepted", "tokens_per_second")


def ghost_text(client: LspClient, path: Path, line: int, column: int) -> dict[str, Any]:
    """Open the file in the language server and ask once. Returns the fields of ``FIELDS``. Raises NoEngine."""
    client.initialize(root=path.parent, settings={"timeout_ms": 60_000, "alternatives": 1})
    client.open(path.as_uri(), path.read_text(encoding="utf-8"))
    client.wait_ready(timeout=120)
    client.timeout = 90
    items = client.inline(path.as_uri(), line - 1, column - 1)
    status = client.wait_for("draftline/status", lambda s: s.get("last") is not None)["last"]
    result = {**status, "text": items[0]["insertText"] if items else ""}
    return {field: result.get(field) for field in FIELDS}


def show(console: Console, path: Path, result: dict[str, Any]) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    first = max(0, LINE - 1 - CONTEXT_LINES)
    console.print(f"[bold]{path.name}[/bold], ghost text at line {LINE}, column {COLUMN}\n")
    code = "\n".join(lines[first : LINE - 1])
    console.print(Syntax(code, "python", line_numbers=True, start_line=first + 1, background_color="default"))
    here = lines[LINE - 1]
    row = Text(f"  {LINE} ", style="dim")
    row.append(here[: COLUMN - 1])
    row.append(result["text"] or f"({result['reason']}: no text)", style="italic bright_green")
    row.append(here[COLUMN - 1 :])
    console.print(row)
    console.print(
        f"\n[dim]{result['reason']}: first token after {result['ttft_ms']:.0f} ms, "
        f"{result['prefilled']} tokens prefilled / {result['reused']} reused, "
        f"{result['drafted']} drafted / {result['accepted']} accepted, "
        f"{result['tokens_per_second']:.0f} tokens/s[/dim]",
        soft_wrap=True,
    )


def _failed(why: str) -> int:
    print(f"the demo failed: {why}", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the fields as JSON")
    args = parser.parse_args()
    path = EXAMPLES / FILE
    # A runtime directory of its own: the demo neither uses nor leaves an engine of the user's.
    with tempfile.TemporaryDirectory(prefix="draftline-demo-") as runtime:
        socket = os.fsencode(Places(Path(runtime), Path(runtime)).socket)
        if len(socket) > MAX_SOCKET_PATH:
            return _failed(
                f"its socket's path in {tempfile.gettempdir()} would have {len(socket)} bytes, and at most "
                f"{MAX_SOCKET_PATH} are possible; set TMPDIR to a shorter directory"
            )
        os.environ[RUNTIME_DIR_VARIABLE] = runtime
        try:
            with LspClient() as client:
                result = ghost_text(client, path, LINE, COLUMN)
        except TimeoutError:
            return _failed("the language server did not answer in time")
        except (NoEngine, ServerGone, LspError) as error:
            return _failed(str(error))
        finally:
            asyncio.run(stop_engine())
    if args.json:
        print(json.dumps(result))
    else:
        show(Console(), path, result)
    return 0 if result["text"] else 1


if __name__ == "__main__":
    sys.exit(main())
