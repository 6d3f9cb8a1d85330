from __future__ import annotations

import pytest

from benchmarks import coverage
from benchmarks.coverage import EAGER, GOAL, OURS, TORCH, Coverage, Finding, measure, misses, total
from benchmarks.coverage_areas import AREAS

CAPTURED = Finding("both")
MISSED = Finding("only torch.compile", ours="MD207 f() cannot be captured | f()")
EXTRA = Finding("only minidynamo", torch="Unsupported: print")
DIFFERENT = Finding("different", torch="Unsupported: print", differs="call 0: result")
UNFIT = Finding("raises", unfit="raises ValueError")


def test_a_row_counts_what_torch_captures_and_what_we_capture_of_it():
    found = Coverage("area", (CAPTURED, CAPTURED, MISSED, EXTRA, DIFFERENT, UNFIT))
    assert found.row() == ["area", "5", "3", "2", "66.7%", "1", "1"]


def test_the_list_names_what_is_missed_and_what_differs():
    lines = list(misses([Coverage("area", (CAPTURED, MISSED, EXTRA, DIFFERENT))]))
    assert [line.split(": ")[1] for line in lines] == ["only torch.compile", "different"]


@pytest.mark.parametrize(
    ("turn", "different"), [(EAGER, False), (TORCH, False), (OURS, True)], ids=["eager", "torch", "ours"]
)
def test_a_process_that_dies_costs_one_case(monkeypatch, turn, different):
    def worker(area, first):
        if first == 0:
            yield {"turn": OURS, "name": "a"}
            yield {"name": "a", "unfit": "", "torch": "", "ours": "", "differs": ""}
            yield {"turn": turn, "name": "b"}
        else:
            assert first == 2
            yield {"turn": OURS, "name": "c"}
            yield {"name": "c", "unfit": "", "torch": "", "ours": "", "differs": ""}

    monkeypatch.setattr(coverage, "_worker", worker)
    found = measure("area").findings
    assert [finding.name for finding in found] == ["a", "b", "c"]
    assert bool(found[1].differs) == different
    assert bool(found[1].unfit) != different


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_torch_compile_captures_whole_is_captured_whole():
    parts = [measure(area) for area in AREAS]
    everything = total(parts)
    assert not everything.different, "\n".join(misses(parts))
    assert everything.reached >= GOAL * everything.wanted > 1000, "\n".join(misses(parts))
    shares = {part.area: part.reached / part.wanted for part in parts if part.wanted >= 10}
    # Numpy arrays, functions that transform functions: see docs/tracer.md.
    assert min(shares.values()) >= 0.75, shares
