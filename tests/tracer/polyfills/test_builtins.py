import pytest

from minidynamo.tracer.polyfills import builtins as twins
from tests.tracer.polyfills.agreement import NUMBERS, WORDS, same_results

CASES = {
    ascii: [("é",), (1,), (["é", "b"],)],
    any: [([],), ([0, ""],), ([0, 2],)],
    all: [([],), ([1, 0],), ([1, 2],)],
    sum: [([],), (NUMBERS,), (NUMBERS, 10), ([[1], [2]], []), ([0.1] * 10,), ([1, 0.5, 2j],), ([], {"start": 4})],
    min: [(NUMBERS,), (3, 1, 2), (WORDS, {"key": len}), ([], {"default": 7}), ({3, 1},)],
    max: [(NUMBERS,), (3, 1, 2), (WORDS, {"key": len}), ([], {"default": None}), ([1, 1.0],)],
    sorted: [(NUMBERS,), (WORDS, {"key": len, "reverse": True}), ({3, 1, 2},)],
}


test_twin_gives_what_the_original_gives = same_results(CASES)


def test_what_a_twin_cannot_do_it_refuses():
    with pytest.raises(NotImplementedError):
        twins.sum_([], "")


def test_twin_raises_what_its_original_does():
    with pytest.raises(ValueError):
        twins.min_([])
