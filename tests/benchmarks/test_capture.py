from __future__ import annotations

from benchmarks.capture import LIMITS, breaks, first_call, measure
from benchmarks.measure import Result
from examples.models import ARCHITECTURES


def test_breaks_are_those_of_one_first_call():
    assert breaks("minidynamo", ARCHITECTURES["conv net"]) == 0
    assert breaks("minidynamo", ARCHITECTURES["sparse mixture of experts"]) > 0


def test_every_sample_compiles_anew(monkeypatch):
    compiled = []
    monkeypatch.setattr("benchmarks.capture.COMPILE", {"minidynamo": lambda model: compiled.append(model) or model})
    for _ in range(2):
        assert first_call("minidynamo", ARCHITECTURES["LSTM cell"]) > 0
    assert len({id(model) for model in compiled}) == 2


def test_only_what_can_be_captured_whole_has_a_limit(monkeypatch):
    monkeypatch.setattr("benchmarks.capture.first_call", lambda system, architecture: 1.0)
    for result in measure(quick=True):
        assert isinstance(result, Result)
        assert result.limits == (() if "sparse" in result.name else LIMITS)
