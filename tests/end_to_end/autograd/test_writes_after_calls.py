"""Tests of writes to arguments or results of a compiled call, before its backward runs.

Where eager's backward gives a result, our backward gives the same result. Where eager refuses because of a write to a
saved tensor, our graph may have saved less: then its gradients are computed from the values that forward saw.
"""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.observe.comparison import seed_generators
from tests.end_to_end.programs import rows_of

PROGRAMS = {
    "activation": lambda x, w: x.sigmoid(),
    "argument kept": lambda x, w: F.gelu(x),
    "nothing kept": lambda x, w: x + 2 * w,
    "both kept": lambda x, w: x * w,
    "sum of arguments kept": lambda x, w: (x + w).sin(),
    "scaled activation": lambda x, w: x.sigmoid() * 2,
    "activations in a row": lambda x, w: (x.sigmoid() * 1).tanh(),
    "product of a multiple": lambda x, w: (x * 2) @ w,
    "product and activation": lambda x, w: (x @ w).relu(),
    "made weight": lambda x, w: x @ (w.triu() + w.triu().t()),
    "transposed": lambda x, w: x.t() @ w,
    "rows": lambda x, w: x.softmax(-1),
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
    "reduction": lambda x, w: x.amax(1),
    "extended": lambda x, w: torch.cat([x, w]),
    "chosen": lambda x, w: torch.where(x > 0, x, w),
    "quotient": lambda x, w: x / (w * w + 1),
    "root": lambda x, w: (x * x + 1).sqrt(),
    "view of an activation": lambda x, w: x.sigmoid().view(-1),
    "part of a product": lambda x, w: (x @ w)[1:],
    "two activations": lambda x, w: (x.sigmoid(), x.tanh() * w),
    "value and what comes of it": lambda x, w: ((y := x * 2), y.sin()),
    "loss": lambda x, w: F.mse_loss(x, w),
    "convolution": lambda x, w: F.conv1d(x[None], w[:, :, None]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]),
}


class Writes:
    def to_input(h, w, outputs):
        h.add_(1)

    def to_row_of_input(h, w, outputs):
        h[0].mul_(2)

    def to_weight(h, w, outputs):
        with torch.no_grad():
            w.add_(1)

    def to_output(h, w, outputs):
        outputs[0].add_(1)

    def to_last_output(h, w, outputs):
        outputs[-1].mul_(2)

    def to_view_of_output(h, w, outputs):
        outputs[0].view(-1)[:1].mul_(2)


def gradients(program, write, leaf):
    seed_generators(3)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    h = x if leaf else x * 1
    made = program(h, w)
    outputs = made if isinstance(made, tuple) else (made,)
    with torch.set_grad_enabled(not leaf):
        write(h, w, outputs)
    facts = [(output._is_view(), output._version) for output in outputs]
    try:
        sum((output * output.detach()).sum() for output in outputs).backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return None
    return [x.grad, w.grad, *outputs], facts


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_writes_before_backward(program):
    compiled = minidynamo.compile(program, backend="aot_eager")
    for write in rows_of(Writes):
        for leaf in (False, True):
            expected, found = gradients(program, write, leaf), gradients(compiled, write, leaf)
            if expected is not None:
                assert found is not None, f"{write.__name__} is an error"
                assert found[1] == expected[1]
                torch.testing.assert_close(found[0], expected[0])


def test_what_eager_refuses_has_the_gradients_of_what_forward_saw_or_is_refused():
    def program(x, w):
        return (x * x + 1).sqrt()  # eager saves the root; we recompute the root

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = minidynamo.compile(program, backend="aot_eager")(x, x)
    expected = (x / y).detach()
    with torch.no_grad():
        y.add_(1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_a_write_behind_a_break():
    def program(h):
        y = h.sigmoid() * 1
        minidynamo.graph_break()
        h.add_(y)
        return h * 1

    def gradient(fn):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        fn(x * 1).sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(minidynamo.compile(program, backend="aot_eager")), gradient(program))


def test_a_result_that_is_a_view_can_be_written_as_in_eager():
    linear = torch.nn.Linear(4, 3)

    def gradient(fn, x):
        y = fn(x)
        assert y._is_view()
        y.add_(1)
        y.relu_().sum().backward()
        return torch.cat([linear.weight.grad.flatten(), linear.bias.grad])

    x = torch.randn(2, 5, 4)
    expected = gradient(linear, x)
    linear.zero_grad()
    compiled = minidynamo.compile(lambda x: F.linear(x, linear.weight, linear.bias), backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, x), expected)


def test_the_transpose_of_a_result_is_differentiated_twice():
    def program(x):
        return x.exp().t()

    def second(fn):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        (first,) = torch.autograd.grad((fn(x) * torch.ones(3, 2)).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), x)[0]

    torch.testing.assert_close(second(minidynamo.compile(program, backend="aot_eager")), second(program))
