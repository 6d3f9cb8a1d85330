"""Tests of minidynamo/autograd/graph/views.py: inverses of views, and elements that tensors share."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder
from minidynamo.autograd.graph.views import ELEMENT_INVERSES, INVERSES, overlaps_itself, same_elements, share_elements
from minidynamo.compat import FakeTensorMode
from minidynamo.testing import assert_same_as_eager

aten = torch.ops.aten

CASES = [
    (aten.view.default, (2, 3, 4), ([6, 4],)),
    (aten._reshape_alias.default, (2, 3, 4), ([6, 4], [4, 1])),
    (aten.unsqueeze.default, (3, 4), (1,)),
    (aten.squeeze.default, (3, 1, 4), ()),
    (aten.squeeze.dim, (3, 1, 4), (1,)),
    (aten.squeeze.dims, (1, 3, 1, 4), ([0, 2],)),
    (aten.expand.default, (3, 4), ([3, 4],)),
    (aten.expand.default, (1, 4), ([0, 4],)),
    (aten.transpose.int, (3, 4, 5), (0, -1)),
    (aten.t.default, (3, 4), ()),
    (aten.permute.default, (2, 3, 4), ([2, -3, 1],)),
    (aten.view.dtype, (3, 4), (torch.int32,)),
    (aten.select.int, (3, 4), (1, -1)),
    (aten.slice.Tensor, (5, 4), (0, 1, 5, 2)),
    (aten.diagonal.default, (3, 4), (1,)),
    (aten.as_strided.default, (4, 4), ([2, 2], [4, 1], 5)),
    (aten.view_as_real.default, (3, 2), ()),
    (aten.view_as_complex.default, (3, 2), ()),
]


def build(base):
    mode = FakeTensorMode()
    emitter = GraphBuilder(mode)
    return emitter, emitter.placeholder("base", mode.from_tensor(base)), mode


def evaluate(emitter, out, *values):
    emitter.graph.output(out)
    return fx.GraphModule({}, emitter.graph)(*values)


@pytest.mark.parametrize("op, shape, args", CASES, ids=lambda v: str(v) if isinstance(v, torch._ops.OpOverload) else "")
def test_inverses(op, shape, args):
    dtype = torch.complex64 if op is aten.view_as_real.default else torch.float32
    base = torch.randn(shape, dtype=dtype)
    expected = base.clone()
    new = (op(base, *args) * 3 + 1).to(op(base, *args).dtype)
    op(expected, *args).copy_(new)
    emitter, node, mode = build(base)
    fresh = emitter.placeholder("new", mode.from_tensor(new))
    result = evaluate(emitter, INVERSES[op](emitter, node, fresh, *args), base, new)
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_every_inverse_is_tested():
    assert {op for op, _, _ in CASES} == set(INVERSES)


@pytest.mark.parametrize(
    "op, args",
    [(aten.split.Tensor, (2, 0)), (aten.split_with_sizes.default, ([1, 4], 0)), (aten.unbind.int, (1,))],
    ids=str,
)
def test_elements(op, args):
    base = torch.randn(5, 4)
    for index, view in enumerate(op(base, *args)):
        expected, new = base.clone(), view * 3 + 1
        op(expected, *args)[index].copy_(new)
        scatter, *rest = ELEMENT_INVERSES[op](GraphBuilder(FakeTensorMode()), index, *args)
        assert torch.equal(scatter(base, new, *rest), expected)


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
