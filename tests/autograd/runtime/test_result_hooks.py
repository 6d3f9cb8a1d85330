"""Tests of minidynamo/autograd/runtime/result_hooks.py: for partial gradients, autograd runs the same hooks on results
as in eager, and returns the same gradients."""

from __future__ import annotations

import itertools

import pytest
import torch

import minidynamo
from minidynamo.autograd.runtime.result_hooks import graph_node

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def side_by_side(a, b):
    return a.sin(), b * 2


def one_from_another(a, b):
    y = a.sin()
    return y, y * b, a.cos()


def three_in_a_row(a, b):
    y = a.exp()
    z = y * b
    return y, z, z.sin()


def writing(a, b):
    a.mul_(b)
    return a.sin(), b.cos()


def from_one_alone(a, b):
    with torch.no_grad():
        c = a * 2
    return (b.sin() * c,)


def views(a, b):
    return a.sin()[1:], b.exp().view(3, 1).t()


def view_of_another(a, b):
    y = a.sin()
    return y[1:].view(2, 1), b * 2, y[1:]


def written_argument(a, b):
    a.mul_(2)
    return b.exp(), a


def in_a_graph_of_an_argument_only(a, b):
    return b.view(3), a.sin()[1:]


CASES = [
    *itertools.product([views, view_of_another], ["xwyz", "xwyzab"]),
    *itertools.product([written_argument], ["xwyza", "xwyzab"]),
    (in_a_graph_of_an_argument_only, "xwyz"),
    *itertools.product([side_by_side], ["xwyz", "xwyzab"]),
    *itertools.product([one_from_another, three_in_a_row], ["xwyzr", "xwyzrab"]),
    (writing, "xwyzab"),
    *itertools.product([from_one_alone], ["xwy", "xwyab"]),
]


def gradients(f, asked, leaves="ab", factor=0):
    """Returns autograd's gradients for the named tensors, and the names of the hooks that ran, sorted."""
    x, w = (torch.full((3,), value, requires_grad=True) for value in (0.5, 0.7))
    a, b = (leaf if name in leaves else leaf * 1 for name, leaf in zip("ab", (x, w)))
    tensors = dict(zip("yzr", f(a, b)), x=x, w=w, a=a, b=b)
    ran = []

    def hook(name):
        def run(gradient):
            ran.append(name)
            return gradient * factor if factor else None

        return run

    for name, tensor in tensors.items():
        if name not in "ab":
            tensor.register_hook(hook(name))
    loss = sum((i * tensors[name]).sum() for i, name in enumerate("yzr", 1) if name in tensors)
    found = torch.autograd.grad(loss, [tensors[name] for name in asked], allow_unused=True)
    return [gradient if gradient is None else gradient.flatten().tolist() for gradient in found], sorted(ran)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("program", "names"), CASES)
def test_hooks_run_where_eager_runs_them_and_what_they_make_is_handed_out_or_refused(program, names, backend):
    compiled = minidynamo.compile(program, backend=backend)
    leaves = [name for name in "ab" if name not in names]
    for count, factor in itertools.product((1, 2), (0, 10)):
        for asked in itertools.combinations(names, count):
            expected = gradients(program, asked, leaves, factor)
            try:
                found = gradients(compiled, asked, leaves, factor)
            except minidynamo.errors.Unsupported as error:
                assert error.code == "MD411" and factor, (asked, error)
                continue
            assert found[1] == expected[1], (asked, factor)
            for one, other in zip(found[0], expected[0], strict=True):
                assert (one is None) == (other is None) and (one is None or one == pytest.approx(other)), (
                    asked,
                    factor,
                )


@pytest.mark.parametrize(
    ("program", "asked"),
    [(side_by_side, "y"), (side_by_side, "yz"), (one_from_another, "yr"), (one_from_another, "zr")],
)
def test_results_that_are_asked_for_alone_are_what_their_hooks_made(program, asked):
    compiled = minidynamo.compile(program, backend="aot_eager")
    assert gradients(compiled, asked, factor=10) == gradients(program, asked, factor=10)


def test_what_cannot_be_handed_out_is_an_error_that_says_so():
    compiled = minidynamo.compile(side_by_side, backend="aot_eager")
    with pytest.raises(minidynamo.errors.Unsupported, match=r"MD411.*a gradient that a hook replaced") as caught:
        gradients(compiled, "yw", factor=10)
    assert "graph_break()" in str(caught.value)


def test_the_node_of_a_graph_is_found_from_each_result():
    y, z = minidynamo.compile(side_by_side, backend="aot_eager")(*torch.ones(2, 3, requires_grad=True).unbind())
    assert y.grad_fn is not z.grad_fn
    assert graph_node(y.grad_fn, y.output_nr)[0] is graph_node(z.grad_fn, z.output_nr)[0]
    assert {graph_node(one.grad_fn, one.output_nr)[1] for one in (y, z)} == {0, 1}
