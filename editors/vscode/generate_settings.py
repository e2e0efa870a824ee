"""Writes the server's settings into the extension's ``package.json``, from ``docs/settings.schema.json``.

``python -P editors/vscode/generate_settings.py``; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCHEMA = HERE.parents[1] / "docs" / "settings.schema.json"
MANIFEST = HERE / "package.json"


def properties(schema: Mapping[str, Any], prefix: str = "draftline.") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each setting by the name that VS Code has for it; a group of settings is one name for each of them."""
    for name, value in schema["properties"].items():
        if "properties" in value:
            yield from properties(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", {"scope": "window", **value}


def with_settings(manifest: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the schema's settings as the second group of its configuration."""
    own = manifest["contributes"]["configuration"][0]
    generated = {"title": "Completion", "properties": dict(properties(schema))}
    return {**manifest, "contributes": {**manifest["contributes"], "configuration": [own, generated]}}


def main() -> None:
    manifest, schema = (json.loads(path.read_text(encoding="utf-8")) for path in (MANIFEST, SCHEMA))
    text = json.dumps(with_settings(manifest, schema), indent=2, ensure_ascii=False)
    MANIFEST.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
