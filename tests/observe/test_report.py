from __future__ import annotations

import torch

import minidynamo
from minidynamo.core.events import Event, on_event
from minidynamo.errors import Diagnostic
from minidynamo.observe.report import MOST_LISTED, Report


def decides(x):
    y = x + 1
    if y.sum() > 0:
        return y
    return -y


def test_functions_that_are_gone_are_reported():
    report = Report()
    stop = on_event(report)

    f = minidynamo.compile(decides, backend="eager")
    for rows in (3, 4, 5):
        f(torch.ones(rows))
    stop()
    f(torch.ones(3, dtype=torch.float64))
    del f
    text = str(report)
    assert report.versions["decides"] == 2 and report.graphs == 2
    assert "1 recompile, 0 left to eager" in text and "     2 x decides" in text
    assert text.count("MD201") == 2 and "(2 times)" in text  # the break, and a reference to its documentation
    assert "expected float32[3] on cpu, got float32[4] on cpu" in text and "float64" not in text


def test_nothing_to_report():
    assert str(Report()) == "minidynamo compiled nothing."


def test_what_is_rare_is_only_counted():
    report = Report()
    for number in range(MOST_LISTED + 2):
        for _ in range(MOST_LISTED + 2 - number):
            report(Event("fallback", "f", {"diagnostic": Diagnostic("MD299", f"number {number}")}))
    shown = str(report)
    assert shown.index("number 0") < shown.index("number 1") and f"number {MOST_LISTED}" not in shown
    assert shown.endswith("and 2 others")
