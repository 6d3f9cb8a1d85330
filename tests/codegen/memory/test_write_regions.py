"""Elements that change when a kernel writes a tensor over one of its inputs. Needs no device."""

import pytest
import torch

from minidynamo.codegen.memory.buffer_reuse import may_overwrite
from minidynamo.codegen.memory.write_regions import Range
from tests.codegen.graphs import kernels

X = torch.ones(8, 6)


def may(function, *args):
    """True if the only kernel of a function may write its first result over its first argument."""
    (kernel,) = kernels(function, *args)
    return may_overwrite(kernel, kernel.reads[0].name, kernel.writes[0].name)


def along(dim, part, other):
    """Computes `part` of `x` along a dimension from itself and a second part, and writes the result into `x`."""

    def program(x):
        chosen = (slice(None),) * dim
        made = x[(*chosen, part)] + x[(*chosen, other)]
        if isinstance(part, int):
            return torch.select_scatter(x, made, dim, part)
        return torch.slice_scatter(x, made, dim, part.start, part.stop, part.step or 1)

    return program


APART = {
    "rows": (0, slice(0, 4), slice(4, 8)),
    "columns": (1, slice(3, 6), slice(0, 3)),
    "every second row": (0, slice(0, 8, 2), slice(1, 8, 2)),
    "every third column": (1, slice(1, 6, 3), slice(0, 5, 3)),
    "one row": (0, 0, 5),
    "one column": (1, 5, 4),
    "the same rows": (0, slice(2, 5), slice(2, 5)),
}
TOGETHER = {
    "next rows": (0, slice(0, 4), slice(1, 5)),
    "rows before": (0, slice(1, 8), slice(0, 7)),
    "next columns": (1, slice(0, 3), slice(1, 4)),
    "rows in between": (0, slice(0, 8, 2), slice(3, 7)),
    "some of the same rows": (0, slice(0, 8, 4), slice(2, 5, 2)),
}


@pytest.mark.parametrize("name", APART)
def test_a_part_may_be_computed_of_what_stays(name):
    assert may(along(*APART[name]), X)


@pytest.mark.parametrize("name", TOGETHER)
def test_not_of_what_changes(name):
    assert not may(along(*TOGETHER[name]), X)


def test_what_changes_is_not_read_behind_the_write():
    def program(x, factor):
        made = torch.slice_scatter(x, x[:4] * factor, 0, 0, 4)
        return made, made / made.sum(1, keepdim=True)

    (kernel,) = kernels(lambda x: program(x, 2), X)
    stored = [[s.buffer for s in loop.body if hasattr(s, "buffer")] for loop in kernel.loops]
    assert stored[0] != [] and stored[-1] != []
    assert not may_overwrite(kernel, kernel.reads[0].name, stored[0][0])


def test_what_is_not_known_changes():
    assert not may(lambda x: torch.where(x > 0, x + x.t(), x), torch.ones(4, 4))
    assert not may(lambda x: x.flip(0), X)


def test_values_of_a_loop_variable():
    for start, step, low, high in [(0, 1, 3, 7), (0, 1, -5, 2), (5, 1, 0, 4), (1, 3, 2, 9), (2, 4, 50, 90)]:
        found = Range(start, step, 6).within(low, high)
        numbers = range(start, start + 6 * step, step)
        assert [*range(found.start, found.end, found.step)] == [n for n in numbers if low <= n < high]
    for start, remainder, modulus in [(0, 1, 3), (5, 0, 2), (4, -1, 4), (2, 3, 9)]:
        found = Range(start, 1, 6).congruent(remainder, modulus)
        numbers = range(start, start + 6)
        assert [*range(found.start, found.end, found.step)] == [n for n in numbers if (n - remainder) % modulus == 0]
