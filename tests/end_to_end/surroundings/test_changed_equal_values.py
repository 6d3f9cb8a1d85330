"""Equal numbers and texts that are one object in the first call and two in the next: `is` answers as in eager."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of

TEXT = "a text of the code"


class Cases:
    def same(x, a, b):
        return x + 1 if a is b else x

    def not_same(x, a, b):
        return x + 1 if a is not b else x

    def same_as_global(x, a, b):
        return x + 1 if a is TEXT else x

    def computed(x, a, b):
        first, second = a + b, a + b
        return x + 1 if first is second else x

    def computed_and_given(x, a, b):
        return x + 1 if a + b is a else x

    def copied(x, a, b):
        return x + 1 if a is (a if b else a + a) else x

    def in_lists(x, a, b):
        first, second = [a], (b,)
        return x + 1 if first[0] is second[0] else x


def again(value):
    """Returns an equal, distinct object."""
    return value[:1] + value[1:] if isinstance(value, str) else value + 0


VALUES = [10_000, 2.5, TEXT, "other text", 7, "x"]


@pytest.mark.filterwarnings("ignore:MD230")  # only Python knows the identities of computed numbers
@pytest.mark.parametrize("program", rows_of(Cases))
@pytest.mark.parametrize("value", VALUES)
def test_objects_are_told_apart(program, value):
    compiled = minidynamo.compile(program, backend="eager", recompile_limit=20)
    x, other = torch.ones(2), again(value)
    third = value + value
    calls = [(value, value), (value, other), (other, value), (other, other), (value, third), (third, value)]
    for a, b in [*calls, *reversed(calls)]:
        assert torch.equal(compiled(x, a, b), program(x, a, b)), (a, b)
