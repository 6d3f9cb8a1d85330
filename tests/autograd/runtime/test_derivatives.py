"""Tests of minidynamo/autograd/runtime/derivatives.py: graphs of derivatives recompute values that were not saved, for
any size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.functional.value_keys import symbols_of
from minidynamo.autograd.graph.inputs import layout_of
from minidynamo.autograd.runtime.derivatives import Derivatives, NotAvailable, Values, with_fresh_symbols
from minidynamo.autograd.trace.decompositions import decomposition_table
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.testing import CompileCounterWithBackend
from tests.autograd.programs import compile_program, graph_of, graphs, inputs, intermediate_inputs


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


def traced_derivatives(program, args, dynamic=False):
    gm, examples = graph_of(program, args, dynamic=dynamic)
    kept = graphs(program, args, dynamic=dynamic).higher.saved
    return Derivatives(gm, layout_of(gm, examples), examples, lambda: decomposition_table(()), kept)


def refused(number):
    raise NotAvailable(f"input {number}")


def test_what_was_kept_is_not_computed_again():
    family = traced_derivatives(lambda x: ((x.cumsum(0) + 1).sigmoid(),), intermediate_inputs((3,))()[0])
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    out = (x.cumsum(0) + 1).sigmoid()
    tangent = torch.ones_like(out, requires_grad=True)
    (first,) = torch.autograd.grad(out, x, tangent, create_graph=True)
    expected = torch.autograd.grad(first, (x, tangent), torch.ones_like(first))
    derivative = family.find(((True,), (False,)), {})
    values = Values([out.detach()], refused, {}, [[tangent], [torch.ones_like(first)]], {})
    torch.testing.assert_close(tuple(derivative.program.run(values)), expected)


def test_an_input_that_was_not_kept_is_asked_for():
    family = traced_derivatives(lambda x: (x.sin(),), inputs((3,))()[0])
    family.kept = ()
    program = family.find(((False,), (False,)), {}).program
    with pytest.raises(NotAvailable, match="input 0"):
        program.run(Values([], refused, {}, [[torch.ones(3)], [torch.ones(3)]], {}))


def test_what_has_no_elements_is_not_computed():
    program, make = lambda x, w: (torch.nn.functional.layer_norm(x, (1,), w),), intermediate_inputs((0, 1), (1,))
    found = []
    for call in (compile_program(program, make()[0]), lambda args: program(*args)):
        args, leaves = make()
        first = torch.autograd.grad(call(args)[0].sum(), leaves, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(g.sum() for g in first), leaves)])
    torch.testing.assert_close(*found)


def test_each_derivative_is_traced_once_and_knows_what_is_differentiable():
    family = traced_derivatives(lambda x, y: (x * y, x + 1), inputs((3,), (3,))()[0])
    product = family.find(((False, None),), {})
    assert product.differentiable == (True, True) and family.find(((False, None),), {}) is product
    assert family.find(((None, False),), {}).differentiable == (False, False)
    assert family.find(((None, True),), {}).differentiable == (True, False)


def test_what_is_decided_on_sizes_holds_for_the_call():
    family = traced_derivatives(lambda x: (torch.nn.functional.glu(x, 0),), inputs((4, 3))()[0], dynamic=True)
    orders = ((True,), (False,))
    calls = [family.find(orders, dict(zip(family.symbols, sizes))) for sizes in ((4, 3), (6, 3), (4, 3))]
    assert calls[0] is calls[2] and calls[0] is not calls[1]
    assert calls[0].applies_to(dict(zip(family.symbols, (4, 3)))) and not calls[0].applies_to(
        dict(zip(family.symbols, (6, 3)))
    )
