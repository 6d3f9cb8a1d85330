"""Numbers that torch's functions take as plain ones are inputs from their second value on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import minidynamo

X = torch.linspace(-2.0, 2.0, 60).view(3, 4, 5).sin()
Y = X.flip(0) + 0.3
CLASSES = torch.arange(15).view(3, 5) % 4
VALUES = (0.11, 0.23, 0.37, 0.41, 0.53, 0.67)

DRAWS: dict[str, Callable[..., Any]] = {
    "dropout": lambda x, n: F.dropout(x, n) + F.dropout(x, n / 2),
    "dropout in place": lambda x, n: F.dropout(x * 1, n, inplace=True) * 2,
    "dropout of a tensor": lambda x, n: torch.dropout(x, n, True),
    "dropout of features": lambda x, n: F.dropout1d(x, n) + F.dropout2d(x[..., None], n)[..., 0] + F.dropout1d(x[0], n),
    "alpha dropout": lambda x, n: F.alpha_dropout(x, n, True) + F.feature_alpha_dropout(x, n, True),
    "bernoulli": lambda x, n: x * torch.empty_like(x).bernoulli_(n) * torch.bernoulli(Y, n),
    "uniform": lambda x, n: x * torch.empty_like(x).uniform_(-n, to=n),
    "normal": lambda x, n: x * torch.empty(5).normal_(std=n) + torch.normal(n, 2.0, (5,)),
    "others": lambda x, n: x * torch.empty(5).exponential_(n) * torch.empty(5).geometric_(n),
    "tails": lambda x, n: x * torch.empty(5).log_normal_(n, 0.5) * torch.empty(5).cauchy_(0.1, n),
    "in memory order": lambda x, n: x * torch.zeros(5, 4, 3).permute(2, 1, 0).bernoulli_(n),
    "gradient ends there": lambda x, n: (x * 2).mul_(3).uniform_(0.0, n) + x,
}
VALUES_ONLY: dict[str, Callable[..., Any]] = {
    "layer norm": lambda x, n: F.layer_norm(x, (5,), Y[0, 0], eps=n) * F.layer_norm(x, (4, 5), eps=n),
    "group norm": lambda x, n: F.group_norm(x, 2, eps=n) + F.instance_norm(x, eps=n),
    "rms norm": lambda x, n: F.rms_norm(x, (5,), None, n),
    "batch norm": lambda x, n: F.batch_norm(x, None, None, training=True, eps=n),
    "normalize": lambda x, n: F.normalize(x, eps=n) + F.local_response_norm(x, 2, alpha=n, beta=n),
    "huber loss": lambda x, n: F.huber_loss(x, Y, delta=n) + F.smooth_l1_loss(x, Y, beta=n),
    "label smoothing": lambda x, n: F.cross_entropy(x, CLASSES, label_smoothing=n),
    "margins": lambda x, n: F.margin_ranking_loss(x, Y, Y.sign(), n) + F.hinge_embedding_loss(x, Y.sign(), margin=n),
    "triplets": lambda x, n: F.triplet_margin_loss(x, Y, Y + 1, margin=n, eps=n),
    "cosines": lambda x, n: F.cosine_similarity(x, Y, 2, eps=n) + F.pairwise_distance(Y, Y.flip(0), eps=n),
    "attention": lambda x, n: F.scaled_dot_product_attention(x, Y, Y, scale=n),
    "padding": lambda x, n: F.pad(x, (1, 2), value=n) + F.pad((x * 9).long(), (1, 2), value=n),
    "lists": lambda x, n: x * torch.tensor([n, 1.0, 2, n * 2, -1]) + torch.tensor([[n, 1], (2, n)]).sum(),
    "lists like a tensor": lambda x, n: (
        x * x.new_tensor([n, 1.0, 2, n * 2, -1]) + x.double().new_tensor(n) + x.new_tensor([n], dtype=torch.float64)
    ),
    "deviations": lambda x, n: (
        torch.std(x, 1, correction=n) + x.var(1, correction=n) + torch.std_mean(x, correction=n)[0]
    ),
    "rrelu as it is used": lambda x, n: F.rrelu(x, n / 4, n),
    "bases": lambda x, n: x * torch.logspace(0, n, 5, base=n + 1),
    "quantile": lambda x, n: torch.quantile(x, n) + x.nanquantile(n, dim=1),
    "replaced": lambda x, n: (
        torch.nan_to_num(x.log(), n) + torch.logit(x.sigmoid(), eps=n) + torch.isclose(x, Y, atol=n)
    ),
    "activations": lambda x, n: (
        F.leaky_relu(x, n) + F.elu(x, n) + F.celu(x, n) + F.softplus(x, n) + F.hardtanh(x, -n, n)
    ),
    "thresholds": lambda x, n: F.threshold(x, n, n) + F.softshrink(x, n) + x.clamp(-n, n) + torch.lerp(x, Y, n),
}


def outcome(f: Callable[..., Any], x: torch.Tensor, *args: Any) -> list[Any]:
    """What a call gives, leaves in the generator and gives for a gradient; or its error."""
    torch.manual_seed(7)
    x = x.clone().requires_grad_()
    try:
        made = f(x, *args)
    except (RuntimeError, ValueError) as error:
        return [type(error), str(error)]
    made.square().sum().backward()
    return [made.detach(), x.grad, torch.get_rng_state(), torch.rand(())]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return bool(one == other)


def check(f: Callable[..., Any], values: Any, backend: str, x: torch.Tensor = X) -> int:
    """Compare with eager, bit by bit; gives the number of compiled graphs."""
    compiled = minidynamo.compile(f, backend=backend)
    for value in values:
        expected, got = outcome(f, x, value), outcome(compiled, x, value)
        assert len(expected) == len(got) and all(map(same, expected, got)), value
    return int(compiled.stats.graphs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", [*DRAWS, *VALUES_ONLY])
def test_a_number_is_an_input(name: str, backend: str) -> None:
    assert check({**DRAWS, **VALUES_ONLY}[name], VALUES, backend) == 2


CHECKPOINTED: dict[str, Callable[..., Any]] = {
    **{name: DRAWS[name] for name in ("dropout", "dropout in place", "dropout of features", "bernoulli", "tails")},
    **{name: VALUES_ONLY[name] for name in ("layer norm", "batch norm", "huber loss", "padding", "lists")},
    "drawn again": lambda x, n: F.dropout(x.repeat(20, 10, 1).sin(), n).cos(),
    "one in another": lambda x, n: (
        checkpoint(lambda y: F.layer_norm(F.dropout(y.sin(), n), (5,), eps=n), x * n, use_reentrant=False) * n
    ),
    "reentrant": lambda x, n: checkpoint(lambda y: F.dropout(y.sin(), n).cos(), x * n, use_reentrant=True),
    "without a state": lambda x, n: checkpoint(
        lambda y: F.layer_norm(y * n, (5,), eps=n), x, use_reentrant=False, preserve_rng_state=False
    ),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_number_is_an_input_of_a_checkpoint(name: str, backend: str) -> None:
    def f(x, n):
        return checkpoint(CHECKPOINTED[name], x, n, use_reentrant=False) * n

    assert check(f, VALUES, backend) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_sizes_are_inputs_of_a_checkpoint(backend: str) -> None:
    def f(x):
        wide = x.shape[0] * 2
        made = checkpoint(lambda y: (y.reshape(wide, -1) * y.shape[0]).sin() / wide, x, use_reentrant=False)
        return made * made.shape[1] * wide

    compiled = minidynamo.compile(f, backend=backend)
    for size in range(4, 9):
        x = torch.randn(size, 6)
        assert all(map(same, outcome(f, x), outcome(compiled, x)))
    assert compiled.stats.graphs == 2


SPECIAL = (0.1, 0.2, 0.0, 0.3, 1.0, -0.5, 1.5, 0.4, math.nan, math.inf, 0.5, 1, 0, True, 0.6)


@pytest.mark.parametrize(
    "name",
    [
        "dropout of a tensor",
        "bernoulli",
        "padding",
        "label smoothing",
        "quantile",
        "rrelu as it is used",
        "lists like a tensor",
    ],
)
def test_numbers_that_mean_something_else_come_between(name: str) -> None:
    check({**DRAWS, **VALUES_ONLY}[name], SPECIAL, "aot_eager")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def trained(backend: str | None, steps: int) -> tuple[list[float], dict[str, torch.Tensor], int]:
    torch.manual_seed(0)
    model = Model()
    run = minidynamo.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(1, steps + 1):
        model.drop.p = 0.5 * step / (steps + 1)
        model.norm.momentum = 1 / step
        model.norm.eps = 1e-3 / step
        loss = run(torch.randn(6, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.state_dict(), minidynamo.stats(model).graphs if backend else 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_schedule_of_attributes_compiles_twice(backend: str) -> None:
    losses, state, _ = trained(None, 100)
    got, got_state, graphs = trained(backend, 100)
    assert got == losses and graphs == 2
    assert all(torch.equal(got_state[name], value) for name, value in state.items())


@pytest.mark.cpp
def test_generated_code_takes_plain_numbers() -> None:
    def f(x, n):
        return F.dropout(F.layer_norm(x, x.shape[-1:], eps=n) * 2, n).sin()

    compiled = minidynamo.compile(f, backend="native")
    for size, n in enumerate(VALUES, 4):
        x = torch.randn(3, size)
        expected, got = outcome(f, x, n), outcome(compiled, x, n)
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(one, other)
    assert compiled.stats.graphs == 2


@pytest.mark.cpp
def test_generated_code_pads_with_any_number() -> None:
    assert check(VALUES_ONLY["padding"], VALUES, "native") == 2


def test_sizes_may_vary_beside_numbers() -> None:
    def f(x, n):
        return F.dropout(F.pad(x * 2, (1, 2), value=n), n)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for size, n in enumerate(VALUES, 5):
        x = torch.randn(3, size)
        assert all(map(same, outcome(f, x, n), outcome(compiled, x, n)))
    assert compiled.stats.graphs == 2


def test_derivatives_of_derivatives() -> None:
    def f(x, n):
        return F.layer_norm(x.sin(), (5,), eps=n) * F.layer_norm(x, (4, 5), eps=n) * F.dropout(x, n)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for n in VALUES[:4]:
        results = []
        for g in (f, compiled):
            torch.manual_seed(1)
            x = X.double().requires_grad_()
            (first,) = torch.autograd.grad(g(x, n).square().sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            results.append((first, second))
        torch.testing.assert_close(*results)
    assert compiled.stats.graphs == 2


def test_hooks_autocast_and_inference_mode() -> None:
    def hooked(x, n):
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * n)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.layer_norm(x @ x.mT, (4,), eps=n).float() * F.dropout(x.sum(), n)

    assert check(hooked, VALUES, "aot_eager") == 2
    compiled = minidynamo.compile(hooked, backend="aot_eager")
    for n in VALUES:
        results = []
        for g in (hooked, compiled):
            torch.manual_seed(2)
            with torch.inference_mode():
                results.append(g(X, n))
        assert torch.equal(*results)
    assert compiled.stats.graphs == 2
