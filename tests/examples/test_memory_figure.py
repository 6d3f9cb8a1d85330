"""The figure of docs/memory.md is the output of its script."""

from __future__ import annotations

import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from examples import memory_figure
from minidynamo.observe.memory_timeline import MemoryTimeline, Series

FIGURE = Path(__file__).parents[2] / "docs" / "memory.svg"


def test_the_script_writes_a_figure_of_three_curves(tmp_path, monkeypatch, capsys):
    def measure(batch, size):
        return MemoryTimeline({name: Series((0, batch, size, 0), 2) for name in ("eager", "boxed", "unboxed")})

    monkeypatch.setattr(memory_figure, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["memory_figure", "--output", str(tmp_path / "a.svg")])
    memory_figure.main()
    assert "unboxed" in capsys.readouterr().out
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(f"{name}: peak" in drawn for name in ("eager", "boxed", "unboxed"))


@pytest.mark.parametrize("name", ["eager", "boxed", "unboxed"])
def test_the_figure_of_the_page_is_a_picture(name):
    root = xml.etree.ElementTree.parse(FIGURE).getroot()
    assert any((element.text or "").startswith(f"{name}: peak") for element in root.iter())
