"""A notebook in a real VS Code: ghost text in a cell, with the cells before it as what stands above."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, script
from window import Window

pytestmark = pytest.mark.timeout(240)


def test_a_cell_is_completed_with_the_cells_before_it(window: Window, engine: FakeEngine) -> None:
    engine.answer = lambda request: script("load(path)")
    window.new_notebook("book.ipynb", "import shop\n", "")
    window.screenshot("notebook")
    window.js("await page.locator('.notebookOverlay .cell-focus-indicator-top, .cell-editor-container').last().click()")
    window.press("Enter")
    window.press("Control+End")
    window.type("data = ")
    window.wait_ghost("load(path)")
    prefix = "".join(p["text"] for p in engine.requests[-1]["segments"] if p["role"] == "prefix")
    assert "import shop" in prefix
    assert prefix.endswith("data = ")
