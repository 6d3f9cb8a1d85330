"""Tests of minidynamo/tracer/frames/deferrals.py: a line or text that would differ after the graph breaks the graph."""

import pytest
import torch

from minidynamo.testing import assert_same_as_eager


@torch.library.custom_op("test_deferrals::shout", mutates_args=())
def shout(x: torch.Tensor) -> torch.Tensor:
    print("shouting")
    return x * 2


@shout.register_fake
def _(x):
    return torch.empty_like(x)


def vector():
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


WRITES = {
    "in place": lambda y: y.add_(1),
    "through a view": lambda y: y[:1].zero_(),
    "without a version": lambda y: y.data.mul_(3),
    "another memory": lambda y: y.set_(torch.zeros(2)),
    "another part in autograd": lambda y: y.requires_grad_(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_tensor_that_changes_later_is_printed_before(write):
    def fn(x):
        y = x.detach() * 2
        text = f"<{y}>"
        print(y)
        write(y)
        return y.detach() + 1, text

    assert_same_as_eager(fn, vector)


def test_other_output_keeps_its_place():
    def before(x):
        y = shout(x.detach())
        print("a line")
        return y + 1

    def after(x):
        print("a line")
        return shout(x.detach()) + 1

    assert_same_as_eager(before, vector, fullgraph=True)
    assert_same_as_eager(after, vector)


def test_another_default_dtype_changes_texts():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        print(x.detach())
        text = f"{x.detach()}"
        torch.set_default_dtype(torch.float32)
        return x + 1, text

    assert_same_as_eager(fn, vector)
