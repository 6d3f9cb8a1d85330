"""Operators of programs: a derivative in Python is traced with guards, or runs eagerly; the values equal eager's.

torch.compile 2.13 keeps the Python state that a formula read during the compile, and counts its side effects once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import minidynamo

BACKENDS = ("eager", "aot_eager", "native")
STATE: dict[str, Any] = {"scale": 1.0, "calls": 0}
LIBRARY = torch.library.Library("minidynamo_operators", "FRAGMENT")
ops = torch.ops.minidynamo_operators


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any] | None = None) -> None:
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"minidynamo_operators::{name}", fake or run, lib=LIBRARY)


def custom(name: str, schema: str, run: Callable[..., Any], formula: Any = None, setup: Any = None) -> None:
    made = torch.library.custom_op(f"minidynamo_operators::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(lambda *args, **kwargs: run(*args, **kwargs))
    if formula is not None:
        made.register_autograd(formula, setup_context=setup)


def setup(ctx: Any, inputs: Any, output: Any) -> None:
    STATE["calls"] += 1
    ctx.save_for_backward(*[value for value in inputs if isinstance(value, Tensor)])
    ctx.numbers = [value for value in inputs if not isinstance(value, Tensor)]


def quiet_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.power = inputs[1]


# Formulas without side effects.
custom(
    "powers",
    "(Tensor x, float power=2.0) -> Tensor",
    lambda x, power=2.0: x**power,
    lambda ctx, g: (g * ctx.power * ctx.saved_tensors[0] ** (ctx.power - 1), None),
    quiet_setup,
)
custom("two", "(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x * 3), lambda ctx, a, b: a * 2 + b * 3)
# `setup_context` that changes Python objects.
custom("noted", "(Tensor x, int n=3) -> Tensor", lambda x, n=3: x * n, lambda ctx, g: (g * ctx.numbers[0], None), setup)
# Lists of tensors, keyword-only parameters, no formula at all.
custom(
    "summed",
    "(Tensor[] xs) -> Tensor",
    lambda xs: xs[0] * STATE["scale"] + xs[1],
    lambda ctx, g: ([g * STATE["scale"], g],),
)
custom("named", "(Tensor x, *, int n) -> Tensor", lambda x, *, n: x * n, lambda ctx, g: g * 4 * STATE["scale"])
custom("undifferentiated", "(Tensor x) -> Tensor", lambda x: x.round())
custom(
    "chosen",
    "(Tensor x, Tensor which) -> Tensor",
    lambda x, which: x * which,
    lambda ctx, g: (g * ctx.saved_tensors[1] if bool(ctx.saved_tensors[1] > 1) else g * 0, None),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        STATE["calls"] += 1
        return grad * 3 * ctx.saved_tensors[0] ** 2 * STATE["scale"]


# A kernel for autograd that calls a Function; an operator with two overloads.
define("cubed", "(Tensor x) -> Tensor", lambda x: x**3)
LIBRARY.impl("cubed", lambda x: Cubed.apply(x), "Autograd")
define("twice.a", "(Tensor x) -> Tensor", lambda x: x * 2)
define("twice.b", "(Tensor x, int n) -> Tensor", lambda x, n: x * n)
torch.library.register_autograd("minidynamo_operators::twice.a", lambda ctx, g: g * 2 * STATE["scale"], lib=LIBRARY)


LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x * STATE["scale"], "CompositeImplicitAutograd")

PROGRAMS: dict[str, Callable[..., Tensor]] = {
    "a default": lambda x, which: ops.powers(x.sin()),
    "a keyword": lambda x, which: ops.powers(x.sin(), power=3.0),
    "two results": lambda x, which: ops.two(x.sin())[0] * ops.two(x)[1],
    "a context that notes": lambda x, which: ops.noted(x.sin()) + ops.noted(x, n=2),
    "a list": lambda x, which: ops.summed([x.sin(), x]),
    "keyword-only": lambda x, which: ops.named(x.sin(), n=4),
    "no formula": lambda x, which: ops.undifferentiated(x.sin()).detach() + x,
    "a decision": lambda x, which: ops.chosen(x.sin(), which),
    "a kernel for autograd": lambda x, which: ops.cubed(x.sin()),
    "overloads": lambda x, which: ops.twice(x.sin()) + ops.twice.b(x.detach(), 3),
    "a kernel that calls other operators": lambda x, which: ops.composite(x.sin()) + x,
    "such a kernel without gradients": lambda x, which: ops.composite(x.detach()) + x,
    "inference": lambda x, which: ops.noted(x.detach()) + x,
    "a size": lambda x, which: ops.noted(x, x.shape[0]),
}


def outcomes(f: Callable[..., Tensor]) -> Sequence[Any]:
    found: list[Any] = []
    STATE["calls"] = 0
    for STATE["scale"], n in ((1.0, 3), (1.0, 3), (5.0, 3), (0.5, 4), (2.0, 5)):
        x, which = torch.linspace(0.1, 1, n).requires_grad_(), torch.tensor(STATE["scale"])
        y = f(x, which)
        y.square().sum().backward()
        found += [y.detach(), x.grad, STATE["calls"]]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_eager(name: str, backend: str) -> None:
    expected = outcomes(PROGRAMS[name])
    actual = outcomes(minidynamo.compile(PROGRAMS[name], backend=backend, fullgraph=True))
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        torch.testing.assert_close(other, one, msg=lambda text, number=number: f"value {number}: {text}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_without_formula_raises_in_backward(backend: str) -> None:
    f = minidynamo.compile(lambda x: ops.undifferentiated(x) * 2, backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    y = f(x)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        y.sum().backward()
