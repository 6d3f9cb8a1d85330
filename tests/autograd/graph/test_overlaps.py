"""Tensors that share elements, compared with a count of the elements; and writes that read the written memory."""

from __future__ import annotations

import itertools

import pytest
import torch

from minidynamo.autograd.graph.overlaps import overlaps_itself, same_elements, share_elements
from minidynamo.testing import assert_same_as_eager

WINDOWS = [
    ((8,), (1,), 0),
    ((8,), (1,), 8),
    ((4,), (2,), 0),
    ((4,), (2,), 1),
    ((4, 4), (8, 1), 0),
    ((4, 4), (8, 1), 4),
    ((4, 4), (8, 1), 2),
    ((3, 3, 1), (8, 2, 5), 1),
    ((2, 2, 4), (16, 8, 2), 1),
    ((2, 4), (16, 1), 8),
    ((0,), (1,), 3),
    ((3, 2), (0, 1), 30),
    ((), (), 17),
]


def opened(memory: torch.Tensor, window) -> torch.Tensor:
    return memory.as_strided(*window)


def test_shared_elements():
    places = torch.arange(40)
    for one, other in itertools.product(WINDOWS, WINDOWS):
        here, there = opened(places, one), opened(places, other)
        assert share_elements(here, there) == (not {*here.flatten().tolist()}.isdisjoint(there.flatten().tolist()))
        assert same_elements(here, there) == (one == other)


def test_what_cannot_be_told_is_shared():
    places = torch.arange(40)
    assert share_elements(places.as_strided((3,), (6,)), places.as_strided((2,), (9,), 1))


def test_elements_of_other_types_lie_where_their_bytes_do():
    memory = torch.zeros(8)
    assert share_elements(memory[:2], memory.view(torch.uint8)[7:])
    assert not share_elements(memory[:2], memory.view(torch.uint8)[8:])


def test_a_tensor_that_overlaps_itself():
    assert overlaps_itself(torch.zeros(1).expand(3)) and overlaps_itself(torch.zeros(4).unfold(0, 2, 1))
    assert not overlaps_itself(torch.zeros(3, 4).t()) and not overlaps_itself(torch.zeros(0, 4))


def program(text: str):
    space: dict = {"torch": torch}
    exec(f"def write(v):\n    {text}\n    return v", space)
    return space["write"]


REFUSED_BY_EAGER = [
    "v += v[0]",
    "v[1:].add_(v[:-1])",
    "v[1:] = v[:-1]",
    "v.view(2, 2).copy_(v.view(2, 2).t())",
    "v.view(2, 2).addmm_(v.view(2, 2), v.view(2, 2))",
    "torch.sin(v[1:], out=v[:-1])",
    "torch.cat([v[:2], v[2:]], out=v)",
    "v.index_add_(0, torch.tensor([0, 1]), v[:2])",
    "v.scatter_(0, torch.tensor([0, 1]), v[:2])",
    "torch._foreach_add_([v[1:]], [v[:-1]])",
    "v.expand(3, 4).add_(1)",
]
DONE_BY_EAGER = [
    "torch.sum(v.view(2, 2), 0, out=v[:2])",
    "v[:1].expand(2)[0] = 4",
    "v[:1].expand(4).fill_(3)",
    "v.view(2, 2)[:, 1:].add_(v.view(2, 2)[:, :1])",
    "v.fill_(v[1])",
    "v.as_strided((2,), (2,), 0).add_(v.as_strided((2,), (1,), 1))",
]


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("text", [*REFUSED_BY_EAGER, *DONE_BY_EAGER])
def test_a_write_that_reads_what_it_writes(text, dynamic):
    inputs = [lambda: torch.arange(4.0), lambda: torch.arange(4.0) + 1]
    assert_same_as_eager(program(text), *inputs, backend="aot_eager", dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_windows_without_common_elements_are_written_in_the_graph(dynamic):
    def fn(x):
        x[::2] += x[1::2]
        x[0] = x[1]
        x.view(2, -1)[0].add_(x.view(2, -1)[1])
        x.view(2, -1)[:, 0].copy_(x.view(2, -1)[:, 1])
        x.add_(x)
        return x.mul_(x.view_as(x))

    # A run operation by operation would log a warning, and the warning would be an error here.
    inputs = [lambda n=n: torch.arange(float(n)) for n in (8, 12, 16)]
    assert_same_as_eager(fn, *inputs, backend="aot_eager", dynamic=dynamic)
