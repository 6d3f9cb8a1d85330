"""Tensors with more than data: subclasses, overrides, lazy and foreign layouts. Passed on, or run eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import leaf, vector

np = pytest.importorskip("numpy")


class Plain(torch.Tensor):
    pass


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if function is torch.sin else result


class Boxed:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function(*[arg.tensor if isinstance(arg, Boxed) else arg for arg in args], **(kwargs or {}))


class CosForSin(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return (torch.cos if function is torch.sin else function)(*args, **(kwargs or {}))


@pytest.mark.parametrize("cls", [Plain, Doubling])
def test_subclasses_of_tensor(cls):
    def program(x):
        y = torch.ones(4) * 2
        return torch.sin(x), x + y, x.shape, type(x) is cls, isinstance(x, torch.Tensor)

    assert_same_as_eager(program, lambda: vector().as_subclass(cls))


def test_a_subclass_is_passed_on():
    program = lambda x, wrapped: (x * 2, wrapped, [wrapped])
    assert_same_as_eager(program, lambda: (vector(), vector().as_subclass(Plain)), graphs=1, breaks=0)


def test_objects_that_override_torch_functions():
    program = lambda x, boxed: (torch.add(boxed, x), torch.nn.functional.relu(boxed), torch.add(Boxed(x), 1))
    compiled = minidynamo.compile(program, backend="eager")
    x, boxed = vector(), Boxed(vector())
    for expected, actual in zip(program(x, boxed), compiled(x, boxed)):
        assert torch.equal(expected, actual)


@pytest.mark.filterwarnings("ignore")  # each eager run of a frame triggers a notice
def test_modes_inside_and_outside():
    def program(x):
        with CosForSin():
            y = torch.sin(x)
        return y, torch.sin(x)

    assert_same_as_eager(program, vector)
    compiled = minidynamo.compile(lambda x: torch.sin(x), backend="eager")
    x = vector()
    for _ in range(2):
        assert torch.equal(compiled(x), x.sin())
        with CosForSin():
            assert torch.equal(compiled(x), x.cos())


def sparse_inputs():
    return torch.eye(3).to_sparse(), torch.randn(3, 3)


def test_sparse_tensors():
    assert_same_as_eager(lambda s, x: (torch.sparse.mm(s, x) + 1, s.to_dense() * x, s.is_sparse), sparse_inputs)


def test_conjugate_views():
    program = lambda x: (x * 2, x.is_conj(), x.real)
    assert_same_as_eager(program, lambda: torch.randn(4, dtype=torch.complex64).conj())


def test_meta_tensors():
    program = lambda x: ((x * 2).shape, x.device, x.is_meta, x + 1)
    assert_same_as_eager(program, lambda: torch.empty(3, device="meta"), graphs=1, breaks=0)


def test_arrays_of_numpy():
    def program(x, a):
        return x + torch.as_tensor(a), torch.from_numpy(a) * 2, np.sin(x.numpy()).sum(), float(a.sum())

    assert_same_as_eager(program, lambda: (vector(), np.ones(4, dtype=np.float32)))


def test_numbers_of_numpy():
    assert_same_as_eager(lambda x, scale, k: x * scale + k, lambda: (vector(), np.float64(2.0), np.int64(3)))


def test_parameters_made_inside():
    def program(x):
        p = nn.Parameter(torch.ones(4))
        return p * x, nn.Linear(4, 2)(x)

    assert_same_as_eager(program, vector)


class Symmetric(nn.Module):
    def forward(self, w):
        return w + w.T


@pytest.mark.parametrize("kind", ["symmetric", "weight_norm", "spectral_norm"])
def test_parametrized_modules(kind):
    module = nn.Linear(4, 4)
    if kind == "symmetric":
        parametrize.register_parametrization(module, "weight", Symmetric())
    else:
        getattr(parametrizations, kind)(module)
    module.eval()
    x = leaf()
    compiled = minidynamo.compile(lambda m, x: m(x), backend="eager", fullgraph=True)
    expected = module(x)
    torch.testing.assert_close(compiled(module, x), expected)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(compiled(module, x), module(x))


def test_gradients_are_clipped():
    def module_with_gradients():
        module = nn.Linear(3, 2)
        for p in module.parameters():
            p.grad = torch.randn_like(p)
        return module

    def program(module):
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        nn.utils.clip_grad_value_(module.parameters(), 0.1)
        return norm, nn.utils.parameters_to_vector(module.parameters())

    assert_same_as_eager(program, module_with_gradients, graphs=1, breaks=0)


def test_trees():
    pytree = torch.utils._pytree

    def program(x):
        doubled = pytree.tree_map(lambda t: t * 2, {"a": x, "b": [x, (x, 1)]})
        leaves, spec = pytree.tree_flatten([x, {"k": x}])
        return doubled, pytree.tree_unflatten([leaf + 1 for leaf in leaves], spec)

    assert_same_as_eager(program, vector, graphs=1, breaks=0)


def test_gradients_asked_for_inside():
    def program(x):
        y = (x * x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return gradient * 2

    assert_same_as_eager(program, leaf)


def test_backward_inside():
    def program(module, x):
        loss = module(x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad
        return loss.detach()

    assert_same_as_eager(program, lambda: (nn.Linear(4, 1), torch.randn(2, 4)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    def program(x):
        y = torch.utils.checkpoint.checkpoint(
            lambda t: torch.nn.functional.dropout(torch.sin(t), 0.5) * 2, x * 2, use_reentrant=reentrant
        )
        return y + 1

    assert_same_as_eager(program, leaf)
