"""Derivatives in Python that a graph cannot hold run eagerly in every backward: derivatives that read numbers from
tensors, change Python state, or write to external tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import minidynamo

BACKENDS = ("eager", "aot_eager", "native")
STATE: dict[str, Any] = {"scale": 1.0, "calls": 0, "seen": []}


def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    out, start = torch.zeros(x.shape[0], weight.shape[2]), 0
    for i, end in enumerate(ends.tolist()):
        out[start:end] = x[start:end] @ weight[i]
        start = end
    return out


def grouped_gradients(x: Tensor, weight: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    dx, dw, start = torch.zeros_like(x), torch.zeros_like(weight), 0
    for i, end in enumerate(ends.tolist()):
        dx[start:end] = grad[start:end] @ weight[i].T
        dw[i] = x[start:end].T @ grad[start:end]
        start = end
    return dx, dw, None


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.ends = inputs[2]


grouped_op = torch.library.custom_op(
    "minidynamo_eager_backward::grouped",
    grouped,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor ends) -> Tensor",
)
grouped_op.register_fake(lambda x, w, ends: x.new_empty(x.shape[0], w.shape[2]))
grouped_op.register_autograd(lambda ctx, g: grouped_gradients(*ctx.saved_tensors, ctx.ends, g), setup_context=keep)


class Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, ends):
        keep(ctx, (x, weight, ends), None)
        return grouped_op(x, weight, ends)

    @staticmethod
    def backward(ctx, grad):
        return grouped_gradients(*ctx.saved_tensors, ctx.ends, grad)


def counted(grad: Tensor) -> Tensor:
    STATE["calls"] += 1
    return grad


@torch.library.custom_op("minidynamo_eager_backward::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * 2


scaled.register_fake(torch.empty_like)
scaled.register_autograd(lambda ctx, g: g * STATE["scale"])


@torch.library.custom_op("minidynamo_eager_backward::factored", mutates_args=())
def factored(x: Tensor) -> Tensor:
    return x * 2


factored.register_fake(torch.empty_like)
factored.register_autograd(lambda ctx, g: g * STATE["factor"])


def keeping(backward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a Function's `apply(x, kept)`; its gradient is `backward(kept, grad)`."""

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kept):
            ctx.kept = kept
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return backward(ctx.kept, grad), None

    return Keeping.apply


@keeping
def amax(kept: Tensor, grad: Tensor) -> Tensor:
    kept.copy_(torch.maximum(kept, grad.abs().max()))
    return grad


@keeping
def counts(steps: Tensor, grad: Tensor) -> Tensor:
    steps.add_(1)
    return grad * 2


@keeping
def reads_number(limit: Tensor, grad: Tensor) -> Tensor:
    return grad * 2 if limit > 2 else grad * int(limit)


@keeping
def notes(log: list[Any], grad: Tensor) -> Tensor:
    log.append(tuple(grad.shape))
    return grad


class MainGrad(torch.autograd.Function):
    """Adds the gradient of a weight to a tensor that the weight holds, and returns None."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.weight = weight
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.weight.main_grad.add_(x.T @ grad)
        return grad @ weight.T, None


class KeepsState(torch.autograd.Function):
    """Adds to the state of forward in each backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.zeros(())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.state += 1
        return grad * ctx.state


class Constant(torch.autograd.Function):
    """A straight-through gradient that does not depend on the incoming gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return torch.ones(grad.shape)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("no derivative")


class Counted(torch.autograd.Function):
    """A Function that torch.func can transform, whose backward reads and changes Python state."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return counted(grad * 2 * ctx.saved_tensors[0] * STATE["scale"])


def by_groups(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(wrap: Callable[..., Any]) -> Any:
        f = wrap(lambda x, w, ends: function(x * 2, w, ends).sin())
        found = []
        for ends in ([2, 6, 8], [0, 3, 8], [8, 8, 8]):
            torch.manual_seed(0)
            x, w = torch.randn(8, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
            f(x, w, torch.tensor(ends)).square().sum().backward()
            found += [x.grad, w.grad]
        return found

    return run


def with_buffer(function: Callable[[Tensor, Any], Tensor], make: Callable[[], Any]) -> Callable[..., Any]:
    """Runs forward, backward twice, then forward alone; records writes and their counts."""

    def run(wrap: Callable[..., Any]) -> Any:
        f, buffer, found = wrap(lambda x, b: function(x * 2, b) * 3), make(), []

        def look() -> None:
            found.append(buffer.clone() if isinstance(buffer, Tensor) else [*buffer])

        for scale in (1.0, 2.0, 0.5):
            x = (torch.arange(4.0) * scale).requires_grad_()
            y = f(x, buffer)
            look()
            y.sum().backward(retain_graph=True)
            look()
            (y * y).sum().backward()
            look()
            f(x, buffer)
            look()
            found.append(x.grad)
        return found

    return run


def by_state(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def run(wrap: Callable[..., Any]) -> Any:
        f, found = wrap(lambda x: function(x.sin()) * 3), []
        STATE["calls"] = 0
        for STATE["scale"] in (1.0, 1.0, 7.0, 0.5):
            x = torch.ones(3, requires_grad=True)
            y = f(x)
            y.sum().backward()
            found += [y.detach(), x.grad, STATE["calls"]]
        return found

    return run


def main_grad(wrap: Callable[..., Any]) -> Any:
    f, found = wrap(lambda x, w: MainGrad.apply(x.cos(), w).sin()), []
    weight = torch.linspace(0, 1, 12).reshape(4, 3).requires_grad_()
    weight.main_grad = torch.zeros(4, 3)
    for scale in (1.0, 2.0):
        x = (torch.arange(8.0).reshape(2, 4) * scale).requires_grad_()
        f(x, weight).sum().backward()
        found += [x.grad, weight.grad, weight.main_grad.clone()]
    return found


PROGRAMS: dict[str, Callable[..., Any]] = {
    "an operator reads integers": by_groups(torch.ops.minidynamo_eager_backward.grouped),
    "a Function reads integers": by_groups(Grouped.apply),
    "a checkpoint": by_groups(
        lambda *args: checkpoint(torch.ops.minidynamo_eager_backward.grouped, *args, use_reentrant=False)
    ),
    "reads a number": with_buffer(reads_number, lambda: torch.tensor(3.0)),
    "a gradient goes into a buffer": with_buffer(amax, lambda: torch.zeros(())),
    "backward counts": with_buffer(counts, lambda: torch.zeros(())),
    "backward appends": with_buffer(notes, list),
    "a count of forward": with_buffer(lambda x, _: KeepsState.apply(x), lambda: torch.zeros(())),
    "main_grad": main_grad,
    "a formula reads state": by_state(scaled),
    "a constant gradient": by_state(Constant.apply),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_eager(name: str, backend: str) -> None:
    expected = PROGRAMS[name](lambda f: f)
    whole = name != "backward appends"  # a graph would create a new list
    actual = PROGRAMS[name](lambda f: minidynamo.compile(f, backend=backend, fullgraph=whole))
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        torch.testing.assert_close(other, one, msg=lambda text, number=number: f"value {number}: {text}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_backward_is_raised_by_backward(backend: str) -> None:
    f = minidynamo.compile(lambda x: Raises.apply(x * 2) + 1, backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    y = f(x)
    with pytest.raises(NotImplementedError, match="no derivative"):
        y.sum().backward()


def test_a_formula_that_only_computes_stays_in_the_graph() -> None:
    STATE["factor"] = 2.0
    f = minidynamo.compile(lambda x: factored(x.sin()).cos(), backend="aot_eager", dynamic=False)
    x = torch.ones(3, requires_grad=True)
    f(x).sum().backward()
    assert f.stats.graphs == 1 and f.code().count("ATen graph of forward") == 1
    with minidynamo.testing.no_recompile():
        f(x)
    STATE["factor"] = 3.0
    f(x)
    assert f.stats.recompiles == 1 and "STATE" in f.why()


@pytest.mark.parametrize("backend", BACKENDS)
def test_inside_of_a_transform(backend: str) -> None:
    program = by_state(lambda x: x * torch.func.grad(lambda x: Counted.apply(x).sum())(x))
    torch.testing.assert_close(program(lambda f: minidynamo.compile(f, backend=backend)), program(lambda f: f))
