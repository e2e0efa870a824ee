"""The wheel holds everything: installed by itself, outside the checkout, it completes with the embedded model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it. Its dependencies come from this environment's site-packages, which a
    ``.pth`` file puts on the path without following the editable install of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment


@pytest.fixture
def clean(tmp_path: Path, installed: Path) -> Iterator[dict[str, str]]:
    """Environment variables of a user with no engine; whatever engine was started is stopped."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DRAFTLINE_MODEL")}
    environment["DRAFTLINE_RUNTIME_DIR"] = str(tmp_path / "run")
    yield environment
    subprocess.run([installed / "bin" / "draftline", "stop"], env=environment, check=False, capture_output=True)


@pytest.mark.timeout(300)
def test_a_wheel_alone_completes_with_the_embedded_model(
    installed: Path, clean: dict[str, str], tmp_path: Path
) -> None:
    code = tmp_path / "shelf.py"
    code.write_text(
        "class Shelf:\n    def __init__(self):\n        self.items = []\n\n    def __len__(self):\n        return"
    )
    command = [installed / "bin" / "draftline", "complete", f"{code}:6:15", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["reason"] == "shown", answer
    assert answer["text"].strip(), answer

    where = [installed / "bin" / "python", "-c", "import server; print(server.__file__)"]
    used = subprocess.run(where, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True).stdout
    assert Path(used.strip()).is_relative_to(installed)


def test_the_wheel_carries_its_licence_and_the_notice_of_the_training_data(installed: Path) -> None:
    (info,) = installed.glob("lib/python*/site-packages/draftline-*.dist-info")
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    assert (info / "licenses" / "NOTICE").stat().st_size > 0


def test_the_wheel_carries_the_kernels_source(installed: Path, tmp_path: Path) -> None:
    code = "from server.kernel.source import TEXTS, texts; print(all(text for _, text in texts()), len(TEXTS))"
    command = [installed / "bin" / "python", "-c", code]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.startswith("True")


def test_the_wheel_carries_the_neovim_plugin_where_setup_looks_for_it(installed: Path, tmp_path: Path) -> None:
    code = "from server.setup.recipes import neovim_plugin; print(neovim_plugin())"
    command = [installed / "bin" / "python", "-c", code]
    plugin = Path(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip())
    assert plugin.is_relative_to(installed)
    assert (plugin / "lua" / "draftline" / "init.lua").exists()
    assert (plugin / "doc" / "draftline.txt").exists()
