"""A notebook in a real VS Code: ghost text in a cell, with the cells before it as what stands above."""

from __future__ import annotations

import json

import pytest
from fake_engine import FakeEngine, script
from window import Window

pytestmark = pytest.mark.timeout(240)


def cell(*lines: str) -> dict[str, object]:
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": list(lines)}


def test_a_cell_is_completed_with_the_cells_before_it(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script("load(path)")
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": [cell("import shop\n"), cell("")], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    (window.work / "book.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    window.js("await page.click('.explorer-folders-view .monaco-list-row[aria-label*=\"book.ipynb\"]')")
    window.js("await page.waitForSelector('.notebookOverlay .cell-list-container')")
    window.wait(
        lambda: window.js("return await page.$$eval('.notebookOverlay .monaco-editor', all => all.length)") >= 1,
        "the cells",
    )
    window.screenshot("notebook")
    window.js("await page.locator('.notebookOverlay .cell-focus-indicator-top, .cell-editor-container').last().click()")
    window.press("Enter")
    window.press("Control+End")
    window.type("data = ")
    window.wait_ghost("load(path)")
    prefix = "".join(p["text"] for p in engine.requests[-1]["segments"] if p["role"] == "prefix")
    assert "import shop" in prefix
    assert prefix.endswith("data = ")
