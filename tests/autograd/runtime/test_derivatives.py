"""Tests of minidynamo/autograd/runtime/derivatives.py: graphs of derivatives recompute values that were not saved."""

import pytest
import torch

from minidynamo.autograd.graph.inputs import layout_of
from minidynamo.autograd.runtime.derivatives import Derivatives, NotAvailable, Values
from minidynamo.autograd.trace.decompositions import decomposition_table
from tests.autograd.programs import compile_program, graph_of, graphs, inputs, intermediate_inputs


def derivatives(program, args, dynamic=False):
    gm, examples = graph_of(program, args, dynamic=dynamic)
    kept = graphs(program, args, dynamic=dynamic).higher.saved
    return Derivatives(gm, layout_of(gm, examples), examples, lambda: decomposition_table(()), kept)


def refused(number):
    raise NotAvailable(f"input {number}")


def test_what_was_kept_is_not_computed_again():
    family = derivatives(lambda x: ((x.cumsum(0) + 1).sigmoid(),), intermediate_inputs((3,))()[0])
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    out = (x.cumsum(0) + 1).sigmoid()
    tangent = torch.ones_like(out, requires_grad=True)
    (first,) = torch.autograd.grad(out, x, tangent, create_graph=True)
    expected = torch.autograd.grad(first, (x, tangent), torch.ones_like(first))
    derivative = family.find(((True,), (False,)), {})
    values = Values([out.detach()], refused, {}, [[tangent], [torch.ones_like(first)]], {})
    torch.testing.assert_close(tuple(derivative.program.run(values)), expected)


def test_an_input_that_was_not_kept_is_asked_for():
    family = derivatives(lambda x: (x.sin(),), inputs((3,))()[0])
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
    family = derivatives(lambda x, y: (x * y, x + 1), inputs((3,), (3,))()[0])
    product = family.find(((False, None),), {})
    assert product.differentiable == (True, True) and family.find(((False, None),), {}) is product
    assert family.find(((None, False),), {}).differentiable == (False, False)
    assert family.find(((None, True),), {}).differentiable == (True, False)


def test_what_is_decided_on_sizes_holds_for_the_call():
    family = derivatives(lambda x: (torch.nn.functional.glu(x, 0),), inputs((4, 3))()[0], dynamic=True)
    orders = ((True,), (False,))
    calls = [family.find(orders, dict(zip(family.symbols, sizes))) for sizes in ((4, 3), (6, 3), (4, 3))]
    assert calls[0] is calls[2] and calls[0] is not calls[1]
    assert calls[0].applies_to(dict(zip(family.symbols, (4, 3)))) and not calls[0].applies_to(
        dict(zip(family.symbols, (6, 3)))
    )
