"""Dtypes of arguments that torch refuses are refused while tracing, with torch's messages; all accepted dtypes are
accepted."""

from __future__ import annotations

import operator

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.graph.dtype_checks import raise_dtype_error
from minidynamo.tracer.graph.fake_tensors import FakeTensorMode

F = torch.nn.functional
BYTE = torch.uint8
BOOL, INT, FLOAT, COMPLEX = torch.bool, torch.int64, torch.float32, torch.complex64


def outcome(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize(
    ("target", "operands"),
    [
        ("relu_", (BOOL,)),
        ("div_", (INT, 2)),
        ("add_", (INT, 0.5)),
        ("mul_", (FLOAT, 1j)),
        ("multiply_", (INT, 0.5)),
        ("bitwise_not", (FLOAT,)),
        ("fill_", (FLOAT, 1j)),
        ("uniform_", (INT,)),
        ("sort", (COMPLEX,)),
        ("__rsub__", (BOOL, True)),
        (operator.iadd, (INT, 0.5)),
        (operator.sub, (BOOL, True)),
        (operator.and_, (FLOAT, FLOAT)),
        (operator.invert, (FLOAT,)),
        (torch.mm, (BOOL, BOOL)),
        (torch.relu, (BOOL,)),
        (torch.addcmul, (INT, FLOAT, COMPLEX)),
        (torch.nn.functional.relu, (COMPLEX,)),
        (torch.pow, (INT, -1)),
        (F.mse_loss, (FLOAT, COMPLEX)),
        (F.mse_loss, (INT, INT)),
        (F.smooth_l1_loss, (INT, INT)),
        (F.soft_margin_loss, (INT, FLOAT)),
        (F.binary_cross_entropy_with_logits, (FLOAT, INT)),
        (F.multilabel_soft_margin_loss, (INT, INT)),
        (F.logsigmoid, (INT,)),
        (F.max_pool1d, (INT, 3)),
        (F.threshold, (BYTE, 0.5, -2.5)),
        (torch.full_like, (BYTE, 300)),
        ("new_full", (BYTE, (3, 2), 300)),
        # the same with accepted dtypes
        ("relu_", (INT,)),
        ("add_", (INT, 2)),
        ("mul_", (COMPLEX, 0.5)),
        (operator.iadd, (INT, True)),
        (operator.sub, (BOOL, 1.0)),
        (torch.mm, (INT, INT)),
        (torch.pow, (INT, 2)),
        (torch.var, (FLOAT,)),
        (F.mse_loss, (FLOAT, FLOAT)),
        (F.soft_margin_loss, (FLOAT, INT)),
        (F.max_pool1d, (FLOAT, 3)),
        (torch.full_like, (BYTE, 30)),
        ("new_full", (BYTE, (3, 2), 30)),
    ],
)
def test_torch_decides(target, operands):
    real = [torch.ones(5, 5, dtype=arg) if isinstance(arg, torch.dtype) else arg for arg in operands]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in real]
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    assert outcome(raise_dtype_error, target, fakes, {}) == outcome(function, *real)


def test_numbers_are_told_apart_by_their_type():
    x = torch.ones(3, dtype=INT)
    for number, taken in ((1, True), (1.0, False), (True, True), (1.0, False)):
        assert (outcome(raise_dtype_error, "mul_", (x, number), {}) is None) is taken


def test_empty_tensors_and_numbers_of_one_element_are_those_of_torch():
    empty, number = torch.ones(0, dtype=INT), torch.tensor(0.5)
    assert outcome(raise_dtype_error, "floor_divide", (empty, 0), {}) is None
    assert outcome(raise_dtype_error, "add_", (torch.ones(3), torch.tensor(2.0, dtype=torch.float64)), {}) is None
    assert outcome(raise_dtype_error, "add_", (torch.ones(3, dtype=INT), number), {}) is not None


@pytest.mark.parametrize("dtype", [INT, BOOL, BYTE, FLOAT])
def test_losses_over_classes_take_classes(dtype):
    for x in (torch.ones(3, 4), torch.ones(3, 1), torch.ones(3, 4, dtype=INT)):
        for loss in (F.nll_loss, F.cross_entropy):
            target = torch.zeros(3, dtype=dtype)
            assert outcome(raise_dtype_error, loss, (x, target), {}) == outcome(loss, x, target)


def test_nothing_is_drawn_and_nothing_is_written():
    x, state = torch.zeros(3), torch.get_rng_state()
    for target, args in (("uniform_", (x,)), ("bernoulli_", (x, 0.5)), ("fill_", (x, 2))):
        raise_dtype_error(target, args, {})
    assert torch.equal(torch.get_rng_state(), state) and not x.any()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_compiled_losses_refuse_what_eager_refuses(backend):
    def loss(x, y):
        return F.mse_loss(x * 2, y)

    compiled = minidynamo.compile(loss, backend=backend)
    for y in (torch.ones(3), torch.ones(3) * 1j):
        assert outcome(compiled, torch.ones(3), y) == outcome(loss, torch.ones(3), y)


def test_what_nothing_stands_for_is_left_to_fake_tensors():
    for args in ((torch.ones(3, device="meta", dtype=BOOL),), (torch.ones(3, 3, dtype=BOOL).to_sparse(),)):
        raise_dtype_error("relu_", args, {})
    raise_dtype_error("reshape", (torch.ones(3, dtype=BOOL), 3), {})


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_dimension_that_may_vary_is_tried_as_what_it_is(shape, dim):
    def reduced(x, d):
        return torch.sum(x * 2, dim=d), x.mean(d), torch.amax(x, d, keepdim=True), x.sum((d,))

    assert_same_as_eager(reduced, lambda: (torch.ones(shape), dim), dynamic=True, fullgraph=True, graphs=1)


def test_dimensions_that_may_vary_are_told_apart():
    def reduced(x, one, other):
        return x.sum((one, other)), torch.amax(x, (one, other))

    assert_same_as_eager(reduced, lambda: (torch.ones(2, 3, 4), 0, 2), dynamic=True, fullgraph=True, graphs=1)


@pytest.mark.parametrize("name", ["linear", "add", "softmax", "full"])
def test_a_function_of_the_user_is_not_tried_whatever_its_name(name):
    shapes = []

    def product(x, weight):
        shapes.append(tuple(x.shape))
        return x.reshape(2, 3) @ weight

    product.__name__ = name
    minidynamo.allow_in_graph(product)
    made = lambda: (torch.ones(6), torch.ones(3, 4))  # noqa: E731
    assert_same_as_eager(lambda x, w: product(x, w) + 1, made, backend="aot_eager", graphs=1)
    assert set(shapes) == {(6,)}
