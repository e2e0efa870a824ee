"""What the code imports is what ``pyproject.toml`` declares: nothing missing from an installation, nothing for show."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
WITH_CUDA = {"fla", "triton"}
"""Training has the one; the other comes with torch for CUDA."""
INSTALLED = packages_distributions()


def declared(*lists: list[str]) -> set[str]:
    """Normalised names of requirements."""
    names = (re.split(r"[<>=!~;\[ ]", requirement)[0] for entries in lists for requirement in entries)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def imported() -> set[str]:
    """Top-level modules of others that some file of ours imports, wherever in it."""
    found: set[str] = set()
    for path in (path for package in OURS for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - OURS - sys.stdlib_module_names


def distributions_of(module: str) -> set[str]:
    return {name.lower().replace("_", "-") for name in INSTALLED.get(module, ())}


def test_every_import_is_declared() -> None:
    optional = {name for entries in PROJECT["project"]["optional-dependencies"].values() for name in declared(entries)}
    allowed = declared(PROJECT["project"]["dependencies"]) | optional
    for module in imported() - WITH_CUDA - optional:
        assert distributions_of(module) & allowed, module


def test_readme_names_the_torch_that_make_would_not_replace() -> None:
    pinned = set(re.findall(r"^torch==.+$", (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert len(pinned) == 1
    assert set(re.findall(r"torch==[\w.+]+", (ROOT / "README.md").read_text(encoding="utf-8"))) == pinned


def test_every_dependency_is_imported() -> None:
    used = {name for module in imported() for name in distributions_of(module)}
    assert declared(PROJECT["project"]["dependencies"]) <= used
