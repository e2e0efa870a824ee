"""The extension's manifest: what it says of settings, keys and proposed API."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lsp.settings import schema

EXTENSION = Path(__file__).parents[3] / "editors" / "vscode"


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
    return found


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_settings", EXTENSION / "generate_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_settings_are_those_of_the_server(manifest: dict[str, Any]) -> None:
    assert manifest == generator().with_settings(manifest, schema()), (
        "run: python -P editors/vscode/generate_settings.py"
    )


def test_every_setting_is_described(manifest: dict[str, Any]) -> None:
    for group in manifest["contributes"]["configuration"]:
        for name, value in group["properties"].items():
            assert len(value.get("description") or value["markdownDescription"]) > 15, name


def test_a_workspace_cant_name_the_program_that_is_started(manifest: dict[str, Any]) -> None:
    own = manifest["contributes"]["configuration"][0]["properties"]
    assert own["draftline.command"]["scope"] == "machine"


def test_no_proposed_api_is_asked_for(manifest: dict[str, Any]) -> None:
    assert "enabledApiProposals" not in manifest


def test_every_command_of_the_manifest_is_registered_and_the_other_way_round(manifest: dict[str, Any]) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (EXTENSION / "src").glob("*.ts"))
    registered = set(re.findall(r'(?:registerCommand|\bcommand)\(\s*"(draftline\.\w+)"', sources))
    assert registered == {command["command"] for command in manifest["contributes"]["commands"]}


def test_what_the_manifest_names_is_there(manifest: dict[str, Any]) -> None:
    steps = [step for one in manifest["contributes"]["walkthroughs"] for step in one["steps"]]
    for name in [manifest["icon"], *(step["media"]["markdown"] for step in steps)]:
        assert (EXTENSION / name).is_file(), name
