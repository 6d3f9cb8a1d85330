"""Tests of minidynamo/autograd/graph/views.py: writes through every kind of view, against torch's in-place writes."""

import pytest
import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder
from minidynamo.autograd.graph.views import ELEMENT_INVERSES, INVERSES
from minidynamo.compat import FakeTensorMode

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
