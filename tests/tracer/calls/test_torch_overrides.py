"""Tensors of classes that a library derives from torch's: their attributes and methods, and their
`__torch_function__`, which gets the same functions with the same arguments as in eager."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import assert_same_as_eager

WEIGHTS = {"add": 2.0, "__rsub__": 3.0, "matmul": 5.0, "linear": 7.0, "mm": 11.0, "sum": 13.0, "__getitem__": 17.0}


class Tagged(nn.Parameter):
    scale = 2.0

    def doubled(self):
        return self * 2

    @property
    def halved(self):
        return self / 2

    @classmethod
    def of(cls, data):
        return cls(data)


class Weighed(torch.Tensor):
    """Multiplies each result by a number that depends on the function that torch passes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor):
            return result
        arguments = 1 + len(args) / 8 + len(kwargs or {}) / 64  # are those of eager
        return result.as_subclass(torch.Tensor) * WEIGHTS.get(func.__name__, 1.0) * arguments


class Passing(nn.Parameter):
    """Passes each call on, as the 4-bit weights of bitsandbytes do."""

    def __new__(cls, data, note=None):
        self = torch.Tensor._make_subclass(cls, data, False)
        self.note = note
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.chunk, torch.split):
            raise NotImplementedError("pieces have no note")
        return super().__torch_function__(func, types, args, kwargs or {})

    def plain(self):
        return torch.Tensor._make_subclass(torch.Tensor, self, self.requires_grad)


def values(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) / 4


def weighed(*shape):
    return values(*shape).as_subclass(Weighed)


class Layer(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.inner(x) @ self.weight) + 1


# Parameters of another class


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_parameter_of_another_class_is_trained(backend):
    def make():
        torch.manual_seed(0)
        return Layer(Tagged(torch.randn(4, 4))), torch.randn(2, 4)

    run = lambda layer, x: layer(x)  # noqa: E731
    assert_same_as_eager(run, make, backend=backend, graphs=1, breaks=0, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "program",
    [
        lambda w: w.doubled() + w.halved + w.scale,
        lambda w: w + 1 if isinstance(w, Tagged) and isinstance(w, nn.Parameter) else w,
        lambda w: (w * 2, type(w) is Tagged, w.__class__ is Tagged, type(w * 2) is torch.Tensor),
        lambda w: w,
        lambda w: w.detach().add_(1),
        lambda w: w.data.mul_(2) + w.shape[0],
        lambda w: torch.cat([w, w]).sum() + w.note,
        lambda w: w + getattr(w, "missing", 3),
    ],
)
def test_methods_properties_and_attributes_of_the_class(program):
    def make():
        w = Tagged(values(3, 4))
        w.note = 5
        return (w,)

    assert_same_as_eager(program, make, backend="aot_eager", graphs=None, breaks=0)


def test_changes_of_the_class_and_of_the_instance_are_noticed(monkeypatch):
    w = Tagged(values(4))
    f = minidynamo.compile(lambda: w.doubled() + w.scale, backend="eager")
    assert torch.equal(f(), w * 2 + 2)
    monkeypatch.setattr(Tagged, "scale", 3.0)
    assert torch.equal(f(), w * 2 + 3)
    w.scale = 4.0
    assert torch.equal(f(), w * 2 + 4)
    monkeypatch.setattr(Tagged, "doubled", lambda self: self * 3)
    assert torch.equal(f(), w * 3 + 4)
    monkeypatch.setattr(Tagged, "__torch_function__", Passing.__torch_function__)
    assert torch.equal(f(), w * 3 + 4)


def test_a_plain_parameter_in_its_place_is_noticed():
    layer, x = Layer(Tagged(values(4, 4))), values(2, 4)
    f = minidynamo.compile(layer, backend="aot_eager")
    for weight in (layer.weight, nn.Parameter(values(4, 4) * 2), Passing(values(4, 4) * 3), Tagged(values(4, 4))):
        layer.weight = weight
        assert torch.allclose(f(x), torch.relu(layer.inner(x) @ weight) + 1)


def test_operators_of_the_class_itself_are_called():
    class Reversed(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        def __add__(self, other):
            return torch.sub(self, other)

    assert_same_as_eager(lambda x: x + 1, lambda: (values(3).as_subclass(Reversed),), backend="eager")


# Classes that decide calls


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x + y,
        lambda x, y: y + x,
        lambda x, y: 2 + x,
        lambda x, y: 2 - x,
        lambda x, y: y - x,
        lambda x, y: x @ y,
        lambda x, y: y @ x,
        lambda x, y: torch.mm(y, x),
        lambda x, y: x.mm(y),
        lambda x, y: torch.nn.functional.linear(y, x),
        lambda x, y: x.sum(dim=0),
        lambda x, y: torch.sum(x, dim=1, keepdim=True),
        lambda x, y: x[0] + x[:, 1] + y,
        lambda x, y: torch.cat([y, x]).relu(),
        lambda x, y: -x // 2 + abs(x) ** 2,
        lambda x, y: (x > y).float() + (x == y),
        lambda x, y: y * x.shape[0] + x.dtype.itemsize + x.ndim + x.size(1),
        lambda x, y: torch.add(y, other=x),
        lambda x, y: torch.einsum("ij,jk->ik", y, x),
        lambda x, y: x.T.exp(),
        lambda x, y: torch.ops.aten.add(x, y),
        lambda x, y: x.as_subclass(torch.Tensor) + 1,
        lambda x, y: torch.nn.functional.relu(input=x) + torch.nn.functional.softmax(x, dim=1),
        lambda x, y: torch.split(x, 1)[0] + x.norm(p=1) + torch.norm(x, dim=0),
        lambda x, y: torch.nn.functional.cross_entropy(x, target=y),
        lambda x, y: torch.nn.functional.max_pool1d(x, 2) + torch.nn.functional.dropout(x, 0.5, training=False),
        lambda x, y: (x.requires_grad, x.is_cuda, isinstance(x, Weighed), y + 1),
    ],
)
def test_the_class_gets_the_calls_of_eager(program, backend):
    assert_same_as_eager(
        program, lambda: (weighed(2, 2), values(2, 2)), backend=backend, breaks=0, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x.mul_(2),
        lambda x, y: torch.add(y, x, out=torch.empty(2, 2)),
        lambda x, y: y.add_(x),
        lambda x, y: [row * 2 for row in x],
        lambda x, y: (len(x), y + 1, bool((x > 0).all())),
        lambda x, y: (x.grad, x.data + 1, x.is_leaf),
        lambda x, y: torch.stack(list(torch.chunk(x, 2))),
        lambda x, y: x.clone(),
        lambda x, y: torch.nn.functional.cross_entropy(x, y),
        lambda x, y: x + y.as_subclass(Passing),
    ],
)
def test_rare_calls_have_the_results_of_eager(program):
    assert_same_as_eager(program, lambda: (weighed(2, 2), values(2, 2)), backend="aot_eager", rtol=1e-6, atol=1e-6)


def test_an_instance_in_an_external_list():
    make = lambda: ([values(2, 2), weighed(2, 2)],)  # noqa: E731
    assert_same_as_eager(lambda xs: torch.cat(xs) + 1, make, backend="aot_eager", rtol=1e-6, atol=1e-6)


def test_the_numbers_that_the_method_reads_are_guarded(monkeypatch):
    f = minidynamo.compile(lambda x: x + 1, backend="aot_eager")
    assert torch.equal(f(weighed(3)), (values(3) + 1) * 2 * 1.25)
    monkeypatch.setitem(WEIGHTS, "add", 4.0)
    assert torch.equal(f(weighed(3)), (values(3) + 1) * 4 * 1.25)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_weight_that_passes_calls_on(backend):
    def make():
        layer = Layer(Passing(values(4, 4), note=3.0))
        with torch.no_grad():
            layer.inner.weight.copy_(values(4, 4))
        return layer, values(2, 4)

    run = lambda layer, x: layer(x) * layer.weight.note + layer.weight.plain()[0]  # noqa: E731
    assert_same_as_eager(run, make, backend=backend, graphs=1, breaks=0, rtol=1e-5, atol=1e-5)


def test_an_error_of_the_method_can_be_caught():
    def f(w):
        try:
            parts = torch.split(w, 2)
        except NotImplementedError:
            parts = [w + 1]
        return parts[0] * 2

    assert_same_as_eager(f, lambda: (Passing(values(4)),), backend="aot_eager", breaks=0)


@pytest.mark.parametrize("function", [operator.add, operator.matmul, torch.mul])
def test_training_beside_a_frozen_instance(function):
    def make():
        return Passing(values(4, 4)), values(4, 4).requires_grad_()

    assert_same_as_eager(lambda w, x: function(x * 2, w), make, backend="aot_eager", graphs=1, breaks=0)


# Changes during the call, and classes that replace what torch defines


class Counting(nn.Parameter):
    n = 0

    def count(self):
        type(self).n += 1
        return self.n


def set_by_class(w):
    type(w).n = 7
    return w.n, w + 1


def set_by_dictionary(w):
    w.__dict__.update(n=9)
    return w.n, w + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [lambda w: (w.count(), w + 1), set_by_class, set_by_dictionary])
def test_attributes_that_the_call_changes(program, backend, monkeypatch):
    monkeypatch.setattr(Counting, "n", 0)
    expected, _ = program(Counting(values(3)))
    monkeypatch.setattr(Counting, "n", 0)
    found, _ = minidynamo.compile(program, backend=backend)(Counting(values(3)))
    assert found == expected


class Replacing(nn.Parameter):
    """Has another softmax, which torch's Python functions call, and properties that say what torch's do."""

    def softmax(self, *args, **kwargs):
        return super().softmax(*args, **kwargs) * 10

    @property
    def shape(self):
        return super().shape


class Lying(nn.Parameter):
    @property
    def shape(self):
        return torch.Size((4, 2))

    @property
    def dtype(self):
        return torch.float64


class Sized(nn.Parameter):
    def size(self, *args):
        return super().size(*args) if args else torch.Size((4, 2))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [
        lambda w: torch.nn.functional.softmax(w, -1),
        lambda w: w.softmax(-1),
        lambda w: torch.softmax(w, -1) + w.shape[0],
        lambda w: (w * 2).shape[0] * torch.ones(2) + w.shape[0],
        lambda w: (w + 1, w.dtype),
        lambda w: torch.ones(3) * len(w) + w.size()[0],
    ],
)
@pytest.mark.parametrize("cls", [Replacing, Lying, Sized])
def test_methods_and_properties_in_place_of_those_of_torch(cls, program, backend):
    assert_same_as_eager(program, lambda: (cls(values(2, 2)),), backend=backend)


LOG: list[str] = []


class Logging(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_tracing_calls_the_class_for_the_program_alone():
    f = minidynamo.compile(lambda w: torch.relu(w) + w.shape[0], backend="aot_eager", dynamic=False)
    for _ in range(2):
        LOG.clear()
        f(values(3).as_subclass(Logging))
        assert LOG == ["relu", "__get__"]


class Functions(torch.Tensor):
    """Returns 8 for some functions: torch passes these for methods of other names, too."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return 8 if func in (torch.Tensor.mul, torch.Tensor.numel, torch.Tensor.dim) else result


@pytest.mark.parametrize(
    "program",
    [
        lambda w, x: (w.__rmul__(2), x + 1),
        lambda w, x: (w.nelement(), w.ndimension(), x + 1),
        lambda w, x: (x * w, w * 2, w.mul(x), x.mul(w), w.numel()),
    ],
)
def test_methods_that_torch_passes_under_another_name(program):
    make = lambda: (values(3).as_subclass(Functions), values(3))  # noqa: E731
    assert_same_as_eager(program, make, backend="aot_eager")
