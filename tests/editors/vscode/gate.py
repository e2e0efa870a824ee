"""code-server's build allows every extension every proposed API; VS Code doesn't. This puts the check back.

``python -P gate.py FOLDER``: FOLDER is where code-server was installed. Run once, by ``editors/vscode.mk``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HOST = "node_modules/code-server/lib/vscode/out/vs/workbench/api/node/extensionHostProcess.js"
OPEN = re.compile(
    r"function (?P<name>[\w$]+)\((?P<extension>[\w$]+),(?P<proposal>[\w$]+)\)\{return!0\}"
    r"(?=function [\w$]+\([\w$]+,[\w$]+\)\{if\(!(?P=name)\([^)]*\)\)"
    r"throw new Error\(`Extension '\$\{[^}]*\}' CANNOT use API)"
)
CLOSED = (
    r"function \g<name>(\g<extension>,\g<proposal>){return!!\g<extension>.enabledApiProposals?.includes(\g<proposal>)}"
)


def restore(folder: Path) -> None:
    """Raises SystemExit when the check isn't where it is known to be."""
    host = folder / HOST
    text, count = OPEN.subn(CLOSED, host.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{host}: the check for proposed API was found {count} times, not once")
    host.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    restore(Path(sys.argv[1]))
