"""Numbers are inputs of torch.func transforms, of custom functions, and of checkpoints around either."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import minidynamo
from tests.end_to_end.numbers.test_scalar_arguments import (
    VALUES,
    X,
    Y,
    check,
    differentiated_twice,
    mixed,
    outcome,
    same,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # raised by torch's own jvp


def ck(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return checkpoint(f, *args, **{"use_reentrant": False, **options})


NORM = nn.LayerNorm(5)


def through_a_module(x, n):
    NORM.eps = n
    parameters = dict(NORM.named_parameters())
    gradients = grad(lambda given: functional_call(NORM, given, (x.detach(),)).square().sum() * n)(parameters)
    return x * gradients["weight"] + gradients["bias"]


def outlives_the_graph(x, n):
    value, pull_back = vjp(lambda w: mixed(w, n) * n, x)
    minidynamo.graph_break()
    return value + pull_back(x)[0]


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "grad": lambda x, n: grad(lambda w: (w.sin() * n + n / 3).sum())(x),
    "an argument": lambda x, n: grad(lambda w, k, m: (w.sin() * k * m).sum())(x, n, m=n * 2),
    "something beside": lambda x, n: sum(grad(lambda w: ((w.sin() * n).sum(), w * n), has_aux=True)(x)),
    "vmap": lambda x, n: vmap(lambda row, k: row.sin() * n + k, in_dims=(0, None))(x, n),
    "hessian": lambda x, n: hessian(lambda w: (w * n).sin().sum())(x[0, 0]),
    "random numbers": lambda x, n: grad(lambda w: (w * torch.rand(5)).square().sum() * n)(x),
}
PLAIN: dict[str, Callable[..., Any]] = {
    "grad of a loss": lambda x, n: grad(lambda w: F.smooth_l1_loss(w, Y, beta=n).sum())(x),
    "value and grad": lambda x, n: sum(grad_and_value(lambda w: F.huber_loss(w, Y, delta=n))(x)),
    "grad of grad": lambda x, n: grad(lambda w: grad(lambda v: F.smooth_l1_loss(v**3, Y, beta=n))(w).sum())(x),
    "by another argument": lambda x, n: grad(lambda a, b: F.huber_loss(a * b, Y, delta=n), argnums=1)(Y, x) + x,
    "vmap of a norm": lambda x, n: vmap(lambda row: mixed(row, n))(x),
    "vmap of grad": lambda x, n: vmap(grad(lambda row: F.smooth_l1_loss(row, Y[0], beta=n) * n))(x),
    "vjp": lambda x, n: vjp(lambda w: mixed(w * n, n), x)[1](x * n)[0],
    "vjp behind a break": outlives_the_graph,
    "jvp": lambda x, n: jvp(lambda w: F.celu(w * n, n), (x,), (x,))[1],
    "jacobians": lambda x, n: sum(
        f(lambda w: F.huber_loss(w * n, Y[0, 0], delta=n))(x[0, 0]) for f in (jacrev, jacfwd)
    ),
    "a module": through_a_module,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_number_is_an_input_of_a_transformed_function(name: str, backend: str) -> None:
    assert check(TRANSFORMED[name], VALUES, backend) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_transform_runs_eagerly_where_a_function_takes_a_plain_number(name: str, backend: str) -> None:
    compiled = minidynamo.compile(PLAIN[name], backend=backend)
    for value in VALUES[:4]:
        for one, other in zip(outcome(PLAIN[name], X, value), outcome(compiled, X, value), strict=True):
            torch.testing.assert_close(other, one)
    assert compiled.stats.graphs <= 4


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_draws_with_a_number_in_a_transformed_function_run_as_written(backend: str) -> None:
    def f(x, n):
        mapped = vmap(lambda row: F.dropout(row, n), randomness="different")(x * n)
        return mapped + grad(lambda w: F.dropout(w, n).square().sum())(x)

    assert check(f, VALUES, backend) <= 6


def test_sizes_are_inputs_of_a_transformed_function() -> None:
    def f(x):
        return grad(lambda w: (w.reshape(w.shape[0] * 2, -1) / w.shape[0]).sin().sum())(x) + vmap(
            lambda row: row * row.shape[0]
        )(x)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for size in range(4, 9):
        x = torch.randn(size, 6)
        assert all(map(same, outcome(f, x), outcome(compiled, x)))
    assert compiled.stats.graphs == 2


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        ctx.save_for_backward(x)
        return mixed(x.sin() * n, n)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * math.sqrt(ctx.n), None


class OfItsKind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n if isinstance(n, float) else n * 2
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.n, None


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        ctx.mark_dirty(x)
        return x.mul_(n)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.n, None


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        mask = (torch.rand_like(x) > n).float()
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


RATE = 0.5


class Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x * RATE + n

    @staticmethod
    def backward(ctx, gradient):
        return gradient * RATE * ctx.n, None


CUSTOM: dict[str, Callable[..., Any]] = {
    "a norm": lambda x, n: Scaled.apply(x, n) + Scaled.apply(x, n * 2 + 1),
    "a view": lambda x, n: OfItsKind.apply(x, n) * 2,
    "an int": lambda x, n: OfItsKind.apply(x, int(n * 100)) + 1,
    "in a checkpoint": lambda x, n: ck(lambda y: Scaled.apply(F.dropout(y, n), n) * n, x),
    "in a branch": lambda x, n: minidynamo.cond(x[0].sum() > 0, lambda y: Scaled.apply(y, n), lambda y: y * n, (x,)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CUSTOM)
def test_a_number_is_an_input_of_a_custom_function(name: str, backend: str) -> None:
    assert check(CUSTOM[name], VALUES, backend) == 2


@pytest.mark.parametrize("function", [Masked, Written])
def test_custom_functions_that_draw_or_write_run_as_written(function: Any) -> None:
    assert check(lambda x, n: function.apply(x * 1, n) * 2, VALUES, "aot_eager") <= 3


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: Masked.apply(x, n) * 2,
        lambda x, n: Scaled.apply(x, int(n * 100)),
        lambda x, n: grad(lambda w: F.dropout(w, n).square().sum())(x),
    ],
)
def test_each_number_is_compiled_where_the_graph_must_not_end(f: Any) -> None:
    compiled = minidynamo.compile(f, backend="aot_eager", fullgraph=True)
    for n in VALUES[:4]:
        assert all(map(same, outcome(f, X, n), outcome(compiled, X, n)))
    assert compiled.stats.graphs == 4


def test_what_a_custom_function_reads_elsewhere_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x):
        return Reading.apply(x, RATE)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for rate in VALUES:
        monkeypatch.setitem(globals(), "RATE", rate)
        assert all(map(same, outcome(f, X), outcome(compiled, X)))


CHECKPOINTED: dict[str, Callable[..., Any]] = {
    "a number comes back": lambda x, n: math.prod(ck(lambda y, k: (y.sin() * k, math.sqrt(k) ** 3, k), x, n)),
    "a derivative by data": lambda x, n: ck(lambda y: (F.dropout(y, n) * n).prod(1) * mixed(y, n)[:, 0], x),
    "one in another": lambda x, n: ck(lambda y: ck(lambda z: (z * n).cumprod(1), y.sin()) * n, x),
    "a branch": lambda x, n: ck(
        lambda y: minidynamo.cond(y[0].sum() > 0, lambda z: mixed(z, n), lambda z: F.dropout(z, n), (y * n,)).exp(),
        x,
    ),
    "a branch, reentrant": lambda x, n: ck(
        lambda y: minidynamo.cond(y[0].sum() > 0, lambda z: F.dropout(z * n), lambda z: z + n, (y * n,)).exp(),
        x * 2,
        use_reentrant=True,
    ),
    "around it": lambda x, n: minidynamo.cond(
        x[0].sum() > 0, lambda y: ck(lambda z: mixed(z, n), y), lambda y: y + n, (x,)
    ),
    "transformed": lambda x, n: vmap(lambda row: row * n)(ck(lambda y: vmap(lambda row: F.softshrink(row, n))(y), x)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_number_is_an_input_of_a_checkpoint_with_more_inside(name: str, backend: str) -> None:
    f = CHECKPOINTED[name]
    compiled = minidynamo.compile(f, backend=backend)
    for value in VALUES:
        for x in (X, -X):
            assert all(map(same, outcome(f, x, value), outcome(compiled, x, value)))
    assert compiled.stats.graphs == 2


def test_an_int_comes_back_from_a_checkpoint() -> None:
    def f(x, n):
        y, times, size = ck(lambda y: (y * n, n + 1, y.shape[0] * 2), x)
        return y.expand(times, *y.shape) * size

    assert check(f, range(2, 8), "aot_eager") == 2


def test_numbers_that_become_constants_behind_a_branch() -> None:
    items = [*range(10)]

    def f(x, n):
        y = ck(lambda x: minidynamo.cond(x[0].sum() > 0, lambda v: v * n, lambda v: v + n, (x,)), x)
        return minidynamo.cond(y[0].sum() > 0, lambda v: v * n, lambda v: v + n, (y,)) * items[n]

    assert check(f, range(2, 6), "aot_eager") == 4


@pytest.mark.cpp
def test_generated_code_takes_numbers_in_subgraphs() -> None:
    def f(x, n):
        made = grad(lambda w: w.sin().sum() * n)(x) + Scaled.apply(x, n)
        return ck(lambda y: minidynamo.cond(y[0].sum() > 0, lambda z: z * n, lambda z: z + n, (y,)).sin(), made)

    compiled = minidynamo.compile(f, backend="native")
    for n in VALUES:
        for one, other in zip(outcome(f, X, n), outcome(compiled, X, n), strict=True):
            torch.testing.assert_close(one, other)
    assert compiled.stats.graphs == 2


def test_derivatives_of_derivatives_of_transformed_and_custom_functions() -> None:
    def f(x, n):
        made = vmap(lambda row: row.sin() * n)(x)
        return made + vmap(lambda row: row.exp() * n * 2)(x) + Scaled.apply(x, n)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for n in VALUES[:3]:
        results = []
        for g in (f, compiled):
            results.append(differentiated_twice(g, X.double(), n))
        torch.testing.assert_close(*results)
    assert compiled.stats.graphs == 2
