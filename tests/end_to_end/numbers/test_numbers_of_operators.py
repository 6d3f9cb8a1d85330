"""Floats of `torch.library` operators are inputs from their second value on if they only enter values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import minidynamo

VALUES = (0.11, 0.23, 0.37, 0.41, 0.53, 0.67, 0.71)
SEEN: list[type] = []


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scale = inputs[1]
    ctx.save_for_backward(inputs[0])


@torch.library.custom_op("minidynamo_tests::powers", mutates_args=())
def powers(x: Tensor, scale: float) -> Tensor:
    SEEN.append(type(scale))
    return x**scale


powers.register_fake(lambda x, scale: torch.empty_like(x) * scale)


def _derived(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * ctx.scale * (x**ctx.scale / x), None  # torch 2.11 compares `scale - 1` with its known powers


powers.register_autograd(_derived, setup_context=_keep)


@torch.library.custom_op("minidynamo_tests::scaled_to", mutates_args=("out",))
def scaled_to(out: Tensor, x: Tensor, scale: float, shift: float | None = None) -> Tensor:
    out.mul_(scale)
    return x * scale + (shift or 1)


scaled_to.register_fake(lambda out, x, scale, shift=None: torch.empty_like(x))


@torch.library.custom_op("minidynamo_tests::weighted", mutates_args=())
def weighted(xs: list[Tensor], weights: list[float], *, power: float = 2.0) -> Tensor:
    return sum(x * weight for x, weight in zip(xs, weights)) ** power


weighted.register_fake(lambda xs, weights, *, power=2.0: torch.empty_like(xs[0]))


@torch.library.custom_op("minidynamo_tests::sized", mutates_args=())
def sized(x: Tensor, scale: float) -> Tensor:
    return x.new_full((math.floor(x.shape[0] * scale * 10),), scale)


sized.register_fake(lambda x, scale: x.new_empty(math.floor(x.shape[0] * scale * 10)))


@torch.library.custom_op("minidynamo_tests::rooted", mutates_args=())
def rooted(x: Tensor, scale: float) -> Tensor:
    return x.new_full((int(math.sqrt(scale) * 10),), scale)


rooted.register_fake(lambda x, scale: x.new_empty(int(math.sqrt(scale) * 10)))


@torch.library.custom_op("minidynamo_tests::branching", mutates_args=())
def branching(x: Tensor, scale: float) -> Tensor:
    return x * scale if scale > 0.4 else x.sum(0, keepdim=True)


branching.register_fake(lambda x, scale: torch.empty_like(x) if scale > 0.4 else x[:1].clone())


@torch.library.custom_op("minidynamo_tests::doubled", mutates_args=())
def doubled(x: Tensor, scale: float) -> float:
    return scale * 2


doubled.register_fake(lambda x, scale: scale * 2)


def _checked(x: Tensor, scale: float) -> Tensor:
    if not isinstance(scale, float):
        raise TypeError("a float is wanted")
    return torch.empty_like(x)


@torch.library.custom_op("minidynamo_tests::checking", mutates_args=())
def checking(x: Tensor, scale: float) -> Tensor:
    return x * scale


checking.register_fake(_checked)


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Defines operators without `custom_op`."""
    made = torch.library.Library("minidynamo_tests_too", "FRAGMENT")
    made.define("shifted(Tensor x, float by) -> Tensor")
    made.impl("shifted", lambda x, by: x.sin() + by, "CompositeExplicitAutograd")
    torch.library.register_fake("minidynamo_tests_too::shifted", lambda x, by: torch.empty_like(x), lib=made)
    torch.library.register_autograd(
        "minidynamo_tests_too::shifted", lambda ctx, g: (g * ctx.scale, None), setup_context=_keep, lib=made
    )
    yield made
    made._destroy()


def written(x: Tensor, n: float) -> Tensor:
    out = x.detach() * 2
    made = scaled_to(out, x.detach(), n) + scaled_to(out, x.detach(), n / 2, shift=n)
    return out * made * x


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a derivative": lambda x, n: powers(x, n) * powers(x, n * 2),
    "by other names": lambda x, n: (
        torch.ops.minidynamo_tests.powers(x, scale=n) + torch.ops.minidynamo_tests.powers.default(x, n)
    ),
    "an int": lambda x, n: powers(x, int(n * 10) + 5),
    "a written argument": written,
    "a list": lambda x, n: x * weighted([x.detach(), x.detach() * 2], [n, 1 - n], power=n),
    "a checkpoint": lambda x, n: checkpoint(lambda y: powers(y * 2, n).sin(), x, use_reentrant=False),
    "a branch": lambda x, n: minidynamo.cond(x.sum() > 4, lambda y: powers(y, n), lambda y: y * n, (x,)),
    "a library": lambda x, n: torch.ops.minidynamo_tests_too.shifted(x, n) * n,
}
# Numbers that decide a branch, a size or a result class are constant.
DECIDING: dict[str, Callable[..., Any]] = {
    "a size": lambda x, n: sized(x.detach(), n).sum() * x,
    "a root": lambda x, n: rooted(x.detach(), n).sum() * x,
    "an answer": lambda x, n: branching(x.detach(), n).sum() * x,
    "a result": lambda x, n: doubled(x.detach(), n) * x,
    "a check": lambda x, n: checking(x.detach(), n) * x,
}


def check(f: Callable[..., Any], backend: str) -> int:
    """Compares with eager, bit by bit; returns the number of compiles."""
    compiled = minidynamo.compile(f, backend=backend)
    for n in VALUES:
        x = torch.rand(3, 2) + 0.5
        results = []
        for g in (f, compiled):
            leaf = x.clone().requires_grad_()
            made = g(leaf, n)
            made.square().sum().backward()
            results.append((made.detach(), leaf.grad))
        assert all(map(torch.equal, *results)), n
    return int(compiled.stats.compiles)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_is_an_input(name: str, backend: str, library: Any) -> None:
    SEEN.clear()
    assert check(PROGRAMS[name], backend) == 2
    assert {*SEEN} <= {float}


@pytest.mark.cpp
def test_generated_code_calls_the_operator() -> None:
    assert check(PROGRAMS["a written argument"], "native") == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_something_is_a_constant(name: str, backend: str) -> None:
    assert 2 < check(DECIDING[name], backend) <= 8


def test_a_derivative_is_the_one_that_is_registered() -> None:
    @torch.library.custom_op("minidynamo_tests::again", mutates_args=())
    def again(x: Tensor, scale: float) -> Tensor:
        return x * scale

    again.register_fake(lambda x, scale: torch.empty_like(x))
    for factor in (1, 3):
        again.register_autograd(
            lambda ctx, gradient, factor=factor: (gradient * ctx.scale * factor, None), setup_context=_keep
        )
        compiled = minidynamo.compile(lambda x, n: again(x, n), backend="aot_eager")
        for n in VALUES[:3]:
            x = torch.ones(3, requires_grad=True)
            compiled(x, n).sum().backward()
            assert torch.equal(x.grad, torch.full((3,), n) * factor)
        assert compiled.stats.graphs == 2


def test_two_operators_of_one_name_are_two(library: Any) -> None:
    library.define("powers(Tensor x, float scale) -> Tensor")
    library.impl("powers", lambda x, scale: x - scale, "CompositeExplicitAutograd")
    torch.library.register_fake("minidynamo_tests_too::powers", lambda x, scale: torch.empty_like(x), lib=library)

    def f(x, n):
        return torch.ops.minidynamo_tests_too.powers(x.detach(), n) * powers(x, n)

    assert check(f, "aot_eager") == 2
