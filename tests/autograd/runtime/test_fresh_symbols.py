"""Tests of minidynamo/autograd/runtime/fresh_symbols.py: derivatives of gradients for which torch specializes all
sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.functional.value_keys import symbols_of
from minidynamo.autograd.runtime.fresh_symbols import with_fresh_symbols
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.testing import CompileCounterWithBackend


def normalized_by_rows(x, w):
    return F.instance_norm(x, weight=w[0], bias=w[1])


PROGRAMS = {
    "batch norm": lambda x, w: F.batch_norm(x, None, None, w[0], w[1], training=True),
    "instance norm": normalized_by_rows,
    "gated": lambda x, w: F.glu(x * w[0][:, None], 1),
    "embedded": lambda x, w: F.embedding(torch.zeros(x.shape[0], 3, dtype=torch.long), x[0] * w[0][:, None]),
}


def derivatives(fn, size):
    torch.manual_seed(size)
    x, w = torch.randn(size, 4, size + 3, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    out = fn(x, w)
    first = torch.autograd.grad((out * out).sum(), [x, w], create_graph=True)
    return [out, *first, *torch.autograd.grad(first[0].pow(2).sum(), [x, w])]


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_gradients_are_those_of_eager_for_any_size(name):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = minidynamo.compile(PROGRAMS[name], backend=counter)
    for size in (3, 4, 5, 6, 4):
        torch.testing.assert_close(derivatives(compiled, size), derivatives(PROGRAMS[name], size))
    assert counter.frame_count == 2


def test_fake_inputs_get_symbols_of_their_own():
    env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    mode = FakeTensorMode()
    mode.shape_env = env
    kinds = torch.fx.experimental.symbolic_shapes.DimDynamic
    source = torch._dynamo.source.ConstantSource
    symbol = env.create_symbol(5, source("a"), kinds.DYNAMIC)
    size = env.create_symintnode(symbol, hint=5)
    with mode:
        flat = [torch.empty(size, 2 * size, requires_grad=True), size, 3]
    made, names = with_fresh_symbols(flat, symbols_of(flat), {symbol: 7})
    assert [*names] == [symbol] and [int(n.node.hint) for n in made[0].shape] == [7, 14]
    assert made[0].requires_grad and made[2] == 3 and int(made[1]) == 7
    assert str(size) == str(symbol), "nothing was decided about the old one"
    assert with_fresh_symbols(flat, symbols_of(flat), {}) is None
