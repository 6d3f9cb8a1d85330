"""Functions of torch that a `__torch_function__` calls: a call without overrides, the plain tensor of an instance."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import assert_same_as_eager


class Held(nn.Parameter):
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data, False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def held():
    return Held(torch.arange(4.0))


def in_a_block(w):
    with torch._C.DisableTorchFunctionSubclass():
        result = torch.relu(w - 1)
        if result.shape[0] < 3:
            raise ValueError("too small")
        return result


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [
        lambda w: torch.Tensor._make_subclass(torch.Tensor, w) * 2,
        lambda w: torch.Tensor._make_subclass(torch.Tensor, w, w.requires_grad) * 2,
        lambda w: w.as_subclass(torch.Tensor) * 2,
        lambda w: in_a_block(w) + w,
        lambda w: w.dtype.itemsize * w + w.shape[0],
    ],
)
def test_plain_tensors_of_an_instance(program, backend):
    assert_same_as_eager(program, lambda: (held(),), backend=backend, graphs=1, breaks=0)


@pytest.mark.parametrize(
    "program",
    [
        lambda w: torch.Tensor._make_subclass(Held, w * 2),
        lambda w: (w * 2).as_subclass(Held) + 1,
        lambda w: torch.Tensor._make_subclass(torch.Tensor, w, True) * 2,
        lambda w: w.requires_grad_(False) * 2,
    ],
)
def test_instances_are_made_by_python(program):
    assert_same_as_eager(program, lambda: (held(),), backend="aot_eager")


def test_a_block_that_raises_ends():
    def f(w):
        try:
            return in_a_block(w[:2])
        except ValueError:
            return w + 1

    compiled = assert_same_as_eager(f, lambda: (held(),), backend="aot_eager")
    assert compiled is not None


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.add else result


def doubling():
    return torch.arange(4.0).as_subclass(Doubling)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_block_in_the_compiled_function_itself_is_left_to_python(backend):
    def f(w):
        before = w + 1
        with torch._C.DisableTorchFunctionSubclass():
            inside = torch.relu(w + 1)
        return before, inside, w + 2

    compiled = assert_same_as_eager(f, lambda: (doubling(),), backend=backend)
    assert minidynamo.stats(compiled).graph_breaks > 0


def test_a_block_around_the_call_is_noticed():
    def f(w):
        return w + 1

    compiled = minidynamo.compile(f, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(compiled(doubling()), torch.arange(4.0) * 2 + 2)
        with torch._C.DisableTorchFunctionSubclass():
            assert torch.equal(compiled(doubling()), torch.arange(4.0) + 1)
    assert minidynamo.stats(compiled).recompiles == 1


def test_a_view_shares_memory_and_version_with_the_instance():
    def write(w):
        w.as_subclass(torch.Tensor).add_(1)
        return w.data * 2

    w, expected = held(), torch.arange(4.0) + 1
    version = w._version
    assert torch.equal(minidynamo.compile(write, backend="aot_eager")(w), expected * 2)
    assert torch.equal(w, expected) and w._version == version + 1
    view = minidynamo.compile(lambda w: w.as_subclass(torch.Tensor), backend="aot_eager")(w)
    assert type(view) is torch.Tensor and view.data_ptr() == w.data_ptr()
    assert minidynamo.compile(lambda w: w, backend="aot_eager")(w) is w
