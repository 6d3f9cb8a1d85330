"""Random training programs need no more memory than in eager."""

import pytest

import minidynamo
from benchmarks.random_peaks import LIMIT, WAYS, peaks


def above(seeds, backend, dynamic=None):
    """Returns the seeds of programs whose peak exceeds eager's."""
    with minidynamo.config.patch(graph_cache=False):
        found = [*peaks(seeds, backend, dynamic)]
    assert len(found) > 0.8 * len(seeds)  # eager refuses few
    return [peak.seed for peak in found if peak.share > LIMIT]


def test_no_peak_is_above_that_of_eager():
    assert above(range(2 * len(WAYS)), "aot_eager") == []


@pytest.mark.parametrize(("seed", "backend"), [pytest.param(113, "native", marks=pytest.mark.cpp), (139, "aot_eager")])
def test_both_halves_of_a_gated_unit_and_parts_without_gradients(seed, backend):
    """Both halves read a value that no kernel writes to memory (113); the zeros of parts take no memory (139)."""
    assert above([seed], backend) == []


def test_no_peak_is_above_that_of_eager_where_sizes_vary():
    assert above(range(3), "aot_eager", True) == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("first", [100, 160])
def test_no_peak_of_many_is_above_that_of_eager(first, backend):
    assert above(range(first, first + 60), backend) == []
