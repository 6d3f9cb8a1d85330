"""Programs that generated kernels once got wrong: their values, their writes, and the history that autograd records."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.testing import assert_same_as_eager

BACKENDS = [pytest.param("cpp", marks=pytest.mark.cpp), "triton"]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def exactly(program, *inputs, backend):
    assert_same_as_eager(program, lambda: tuple(x.clone() for x in inputs), backend=backend, rtol=0, atol=0)


@pytest.mark.cpp
@pytest.mark.parametrize("whole", INTEGERS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_beyond_an_integer_type_become_what_eager_makes_of_them(dtype, whole):
    infinity = float("inf")
    values = [3e9, -3e9, infinity, -infinity, float("nan"), -17.5, -0.3, 300.0, -129.0, 4294967301.0, 70000.0, 1e19]

    def program(x):
        y = x.to(whole)
        return y, y.to(x.dtype), torch.signbit(y.to(torch.float32)), y.to(torch.int32).bool()

    exactly(program, torch.tensor(values * 8, dtype=torch.float64).to(dtype), backend="cpp")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [7, -1.7, True, float("nan"), float("inf")])
def test_a_number_is_copied_into_a_tensor(value, backend):
    def program(x):
        y = x * 2
        y[1:].copy_(value)
        x.copy_(value)
        return y

    exactly(program, torch.randn(4, 3), backend=backend)
    exactly(program, torch.ones(4, 3, dtype=torch.int8), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fold", [torch.argmax, torch.argmin, torch.sum, torch.amax, torch.any], ids=lambda f: f.__name__
)
def test_folds_without_results(fold, backend):
    exactly(lambda x: fold(x, dim=-2), torch.zeros(3, 0), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_minus_zero_is_false(dtype, backend):
    x = torch.tensor([-0.0, 0.0, 1.0, float("nan")], dtype=dtype)
    exactly(lambda x: (x.bool(), torch.logical_and(x, x), (x * 0).bool().sum()), x, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bool_from_one_element_meets_bools_from_many(backend):
    whole, single = torch.arange(8).reshape(2, 4), torch.ones(1)
    exactly(lambda x, y: torch.logical_xor(y, x), whole, single, backend=backend)
    exactly(lambda x, y: (y == 1).to(torch.bfloat16) + x, whole, single, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autograd_learns_of_a_write_to_an_input(backend):
    write = minidynamo.compile(lambda x: x.add_(1), backend=backend)
    weight, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
    loss = (weight * x).sum()
    version = x._version
    write(x)
    assert x._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_inference_tensor_has_no_version_to_count(backend):
    with torch.inference_mode():
        x = torch.zeros(3)
        minidynamo.compile(lambda x: x.add_(1), backend=backend)(x)
        assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_that_fake_tensors_do_not_foretell(backend):
    def program(x, y):
        return torch.relu(torch.div(x, torch.nn.functional.hardshrink(y.half()), rounding_mode="floor"))

    x = torch.arange(48).reshape(2, 6, 1, 4) % 3 > 0
    y = torch.arange(192.0).reshape(4, 4, 2, 6).permute(2, 3, 1, 0) - 90
    actual = minidynamo.compile(program, backend=backend)(x, y)
    assert torch.equal(actual.nan_to_num(), program(x, y).nan_to_num())


@pytest.mark.cpp
@pytest.mark.parametrize("write", ["fill_", "zero_"])
def test_writes_to_elements_that_share_memory(write):
    arguments = (2,) if write == "fill_" else ()

    def through_a_view(x):
        getattr(x.expand(4, 3), write)(*arguments)
        return x + 1

    def to_an_input(x):
        getattr(x, write)(*arguments)
        return x + 1

    with pytest.warns(MinidynamoNotice, match="elements share memory"):
        exactly(through_a_view, torch.zeros(1, 3), backend="cpp")
        assert_same_as_eager(to_an_input, lambda: torch.zeros(1, 3).expand(4, 3), backend="cpp")


@pytest.mark.parametrize("norm", ["batch_norm", "group_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_of_mixed_dtypes(backend, dtype, norm):
    def program(x, weight, bias):
        x = x.relu()
        if norm == "batch_norm":
            return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True).sin()
        if norm == "group_norm":
            return torch.nn.functional.group_norm(x, 2, weight, bias).sin()
        return torch.nn.functional.layer_norm(x, (4,), weight, bias).sin()

    torch.manual_seed(0)
    inputs = [torch.randn(3, 4, 5, 4, dtype=dtype), torch.randn(4), torch.randn(4)]
    for x in inputs:
        x.requires_grad_()
    expected, actual = program(*inputs), minidynamo.compile(program, backend=backend)(*inputs)
    close = {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(actual, expected, **close)
    cotangent = torch.randn_like(expected)
    for found, wanted in zip(
        torch.autograd.grad(actual, inputs, cotangent), torch.autograd.grad(expected, inputs, cotangent)
    ):
        torch.testing.assert_close(found, wanted, **close)
