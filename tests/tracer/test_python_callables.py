"""Python functions called during a trace, besides the frame, are guarded, or run in each call: no stale values."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrize
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import minidynamo

BACKENDS = ("eager", "aot_eager", "native")
STATE = {"scale": 1.0}
STEPS = (1.0, 1.0, 3.0, 4.0, -2.0)


class Pair:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Scaled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * STATE["scale"] if func is torch.Tensor.add else result


class ScalesSines(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * STATE["scale"] if func is torch.sin else result


class Mapped(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

    @staticmethod
    def vmap(info, dims, x):
        return Mapped.apply(x) * STATE["scale"], dims[0]

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 2 * STATE["scale"]


class ScalesWeights(torch.nn.Module):
    def forward(self, weight):
        return weight * STATE["scale"]


@torch.library.custom_op("minidynamo_callables::sized", mutates_args=())
def sized(x: Tensor) -> Tensor:
    return x.new_ones(int(abs(STATE["scale"]))) * STATE["scale"]


sized.register_fake(lambda x: x.new_empty(int(abs(STATE["scale"]))))


@torch.library.triton_op("minidynamo_callables::scaled", mutates_args={})
def scaled(x: Tensor) -> Tensor:
    return x * STATE["scale"]


def linear() -> torch.nn.Linear:
    made = torch.nn.Linear(3, 3)
    torch.nn.init.constant_(made.weight, 0.5)
    torch.nn.init.constant_(made.bias, 0.1)
    return made


def with_hook(method: str, hook: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    layer = linear()
    getattr(layer, method)(hook)
    return lambda x: layer(x)


def parametrized() -> Callable[[Tensor], Tensor]:
    layer = linear()
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", ScalesWeights())
    return lambda x: layer(x)


def under_mode(x: Tensor) -> Tensor:
    with ScalesSines():
        return torch.sin(x)


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * STATE["scale"])
    return y.sin()


def flattened(x: Tensor) -> Tensor:
    leaves, _ = pytree.tree_flatten(Pair(x, x + 1))
    return leaves[0] + leaves[1]


PROGRAMS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "pytree": lambda: flattened,
    "pytree map": lambda: lambda x: pytree.tree_map(lambda leaf: leaf * STATE["scale"], {"a": x})["a"],
    "default_factory": lambda: lambda x: collections.defaultdict(lambda: x * STATE["scale"])["a"] + 1,
    "key": lambda: lambda x: x * sorted([3, 1, 2], key=lambda n: n * STATE["scale"])[0],
    "reduce": lambda: lambda x: functools.reduce(lambda a, b: a * STATE["scale"] + b, [x, x, x]),
    "torch_function": lambda: lambda x: torch.Tensor.add(x.as_subclass(Scaled), 1).as_subclass(torch.Tensor),
    "a mode": lambda: under_mode,
    "a fake implementation": lambda: lambda x: sized(x.detach()) * x.sum(),
    "triton_op": lambda: lambda x: scaled(x.detach()) * x,
    "a hook of forward": lambda: with_hook("register_forward_hook", lambda m, args, out: out * STATE["scale"]),
    "a hook of backward": lambda: with_hook(
        "register_full_backward_hook", lambda m, grads, _: (grads[0] * STATE["scale"],)
    ),
    "a hook of a tensor": lambda: hooked,
    "a parametrization": parametrized,
    "a vmap rule": lambda: lambda x: torch.func.vmap(Mapped.apply)(x),
    "a jvp rule": lambda: lambda x: torch.func.jvp(Mapped.apply, (x.detach(),), (x.detach(),))[1] * x,
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    if Pair not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            Pair, lambda p: ([p.a * STATE["scale"], p.b], None), lambda values, _: Pair(*values)
        )


def outcomes(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    found = []
    for STATE["scale"] in STEPS:
        x = torch.linspace(0.5, 1, 3).requires_grad_()
        y = f(x)
        y.sum().backward()
        found += [y.detach(), x.grad]
    return found


@pytest.mark.filterwarnings(
    "ignore::minidynamo.core.events.MinidynamoNotice"
)  # notices about modes, and about graphs run operation by operation
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # raised by torch's own jvp
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_eager(name: str, backend: str) -> None:
    expected = outcomes(PROGRAMS[name]())
    actual = outcomes(minidynamo.compile(PROGRAMS[name](), backend=backend))
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        torch.testing.assert_close(other, one, msg=lambda text, number=number: f"value {number}: {text}")
