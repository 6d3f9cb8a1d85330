"""Scalar arguments of torch functions are inputs from their second value on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.observe.comparison import seed_generators
from tests.pairs import pairs

X = torch.linspace(-2.0, 2.0, 60).view(3, 4, 5).sin()
Y = X.flip(0) + 0.3
CLASSES = torch.arange(15).view(3, 5) % 4
VALUES = (0.11, 0.23, 0.37, 0.41, 0.53, 0.67)


def normalized(norm: Callable[..., Any], x: torch.Tensor, n: float, *eps: float) -> torch.Tensor:
    """Returns a norm with its updated statistics."""
    mean, var, weight, bias = torch.zeros(4), torch.ones(4), torch.linspace(1, 2, 4), torch.linspace(0, 1, 4)
    made: torch.Tensor = norm(x, mean, var, weight, bias, True, n / 2, *(eps or (n,)))
    return made * mean[:, None] + var[:, None]


def shortened(weight: torch.Tensor, x: torch.Tensor, n: float) -> torch.Tensor:
    """Looks up rows of an embedding, and returns them with the changed weight."""
    made = F.embedding(CLASSES % 4, weight, max_norm=n, norm_type=1 + n)
    return made.sum() * x + weight.sum()


def shortened_bags(weight: torch.Tensor, x: torch.Tensor, n: float) -> torch.Tensor:
    """The same for sums of rows."""
    made = F.embedding_bag(CLASSES % 4, weight, max_norm=n, norm_type=1 + n)
    return made.sum() * x + weight.sum()


def mixed(x: torch.Tensor, n: float) -> torch.Tensor:
    """Returns a weighted mean; its derivative takes the weight as a plain number."""
    return torch.lerp(x, x.cos(), n)


def complexed(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x.flip(0) + 1)


def written(z: torch.Tensor, n: float) -> torch.Tensor:
    z += n
    z[1] -= n
    z /= n
    return z


DRAWS: dict[str, Callable[..., Any]] = {
    "dropout": lambda x, n: F.dropout(x, n) + F.dropout(x, n / 2),
    "dropout in place": lambda x, n: F.dropout(x * 1, n, inplace=True) * 2,
    "uniform": lambda x, n: x * torch.empty_like(x).uniform_(-n, to=n),
    "in memory order": lambda x, n: x * torch.zeros(5, 4, 3).permute(2, 1, 0).bernoulli_(n),
    "gradient ends there": lambda x, n: (x * 2).mul_(3).uniform_(0.0, n) + x,
    "draws": lambda x, n: (
        x * torch.empty_like(x).bernoulli_(n) * torch.empty(5).normal_(std=n) + torch.empty(5).exponential_(n)
    ),
}
VALUES_ONLY: dict[str, Callable[..., Any]] = {
    "momentum": lambda x, n: normalized(F.batch_norm, x, n, 1e-5),
    "huber loss": lambda x, n: F.huber_loss(x, Y, delta=n) + F.smooth_l1_loss(x, Y, beta=n),
    "label smoothing": lambda x, n: F.cross_entropy(x, CLASSES, label_smoothing=n),
    "lists": lambda x, n: x * torch.tensor([n, 1.0, 2, n * 2, -1]) + torch.tensor([[n, 1], (2, n)]).sum(),
    "lists like a tensor": lambda x, n: (
        x * x.new_tensor([n, 1.0, 2, n * 2, -1]) + x.double().new_tensor(n) + x.new_tensor([n], dtype=torch.float64)
    ),
    "lists of ints": lambda x, n: (
        x * CLASSES.new_tensor([n * 10, 1.5, 2, -n * 10, 0]) + torch.tensor([n, 0, 1, n, 2], dtype=torch.bool)
    ),
    "lists of the kind of a tensor": lambda x, n: (
        x * x.new([n, 1.0, 2, n * 2, -1]) + CLASSES.new((n * 10, 0, 1, 2, -n * 10)) + x.double().new([[n], [1]]).sum()
    ),
    "scaled and added": lambda x, n: torch.add(x.sin(), x, alpha=n) + Y.add(x, alpha=-n) + (x * 2).add_(x, alpha=n),
    "leaves": lambda x, n: x * torch.tensor(n, requires_grad=True) + torch.full((5,), n, requires_grad=True),
    "remainders": lambda x, n: (
        n % (Y + 3) * x + torch.remainder(n, x.detach()) + round(n * 9) % Y + (n % (CLASSES + 1))[:, None]
    ),
    "quotients": lambda x, n: (x.detach() // n) * x + CLASSES[:, :1, None] // n + n // Y,
    "products": lambda x, n: (
        torch.addmm(x[0], x[1, :, :4], x[2], beta=n, alpha=n) + torch.baddbmm(x, x[..., :4], Y, alpha=n)
    ),
    "products of vectors": lambda x, n: (
        torch.addmv(x[0, :, 0], x[1], Y[0, 0], beta=n, alpha=n).sum()
        + torch.addr(x[0], x[1, :, 0], Y[0, 0], beta=n, alpha=n)
        + x[0].addbmm(x[..., :4], Y, beta=n)
    ),
    "scaled": lambda x, n: (
        torch.sub(x, Y, alpha=n) + torch.rsub(x, Y, alpha=n) + x.index_add(0, torch.tensor([1]), Y[:1], alpha=n)
    ),
    "thresholds": lambda x, n: F.threshold(x, n, n) + F.softshrink(x, n) + x.clamp(-n, n) + torch.lerp(x, Y, n),
    "powers": lambda x, n: x.exp() ** n + n**x + (Y.abs() * x.exp()).pow_(n) + x ** int(n * 10),
    "averages": lambda x, n: torch.lerp(x, Y, n) * (x * 1).lerp_(Y, n) + (x * 1).sub_(Y, alpha=n),
}
# Numbers of these functions are constants: from the second value on the graph ends before the call.
CONSTANTS: dict[str, Callable[..., Any]] = {
    "dropout of a tensor": lambda x, n: torch.dropout(x, n, True),
    "alpha dropout": lambda x, n: F.alpha_dropout(x, n, True) + F.feature_alpha_dropout(x, n, True),
    "bernoulli": lambda x, n: x * torch.empty_like(x).bernoulli_(n) * torch.bernoulli(Y, n),
    "normal": lambda x, n: x * torch.empty(5).normal_(std=n) + torch.normal(n, 2.0, (5,)),
    "normal beside tensors": lambda x, n: (
        x * torch.normal(Y, n) + torch.normal(n, Y.abs()) + torch.normal(mean=Y.mT, std=n).mT
    ),
    "others": lambda x, n: x * torch.empty(5).exponential_(n) * torch.empty(5).geometric_(n),
    "tails": lambda x, n: x * torch.empty(5).log_normal_(n, 0.5) * torch.empty(5).cauchy_(0.1, n),
    "dropout in place by its name": lambda x, n: (
        torch.dropout_(x * 1, n, True) + torch.feature_dropout_(x * 1, n, True)
    ),
    "alpha dropout in place": lambda x, n: torch.alpha_dropout_(x * 1, n, True),
    "native dropout": lambda x, n: torch.native_dropout(x, n, True)[0] * torch.native_dropout(x, n / 2, True)[1],
    "rrelu": lambda x, n: F.rrelu(x, n / 4, n, training=True) + torch.rrelu(x, n / 2, n, True),
    "rrelu in place": lambda x, n: F.rrelu_(x * 1, n / 4, n, training=True) + F.rrelu(x * 1, n / 4, n, True, True),
    "attention": lambda x, n: F.scaled_dot_product_attention(x, Y, Y, dropout_p=n),
    "attention with a scale": lambda x, n: F.scaled_dot_product_attention(x, Y, Y, dropout_p=n, scale=n),
    "multi-head attention": lambda x, n: F.multi_head_attention_forward(
        *(x, x, x, 5, 1, Y.new_ones(15, 5) / 9, None, None, None, False, n, Y.new_ones(5, 5), None)
    )[0],
    "ints": lambda x, n: x * torch.empty(5).random_(int(n * 99)) + torch.randint_like(x, -3, int(n * 99)),
    "layer norm": lambda x, n: F.layer_norm(x, (5,), Y[0, 0], eps=n) * F.layer_norm(x, (4, 5), eps=n),
    "group norm": lambda x, n: F.group_norm(x, 2, eps=n) + F.instance_norm(x, eps=n),
    "rms norm": lambda x, n: F.rms_norm(x, (5,), None, n),
    "batch norm": lambda x, n: F.batch_norm(x, None, None, training=True, eps=n),
    "running statistics": lambda x, n: normalized(F.batch_norm, x, n) + normalized(F.instance_norm, x, n),
    "running statistics of builtins": lambda x, n: (
        normalized(lambda x, m, v, w, b, *more: torch.batch_norm(x, w, b, m, v, *more, False), x, n)
        + normalized(lambda x, m, v, w, b, *more: torch.instance_norm(x, w, b, m, v, *more, False), x, n)
        + normalized(lambda x, m, v, w, b, *more: torch.native_batch_norm(x, w, b, m, v, *more)[0], x, n)
    ),
    "native group norm": lambda x, n: torch.native_group_norm(x, None, None, 3, 4, 5, 2, n)[0],
    "poisson loss": lambda x, n: torch.poisson_nll_loss(x, Y.abs(), False, True, n, 1) * x,
    "normalize": lambda x, n: F.normalize(x, eps=n) + F.local_response_norm(x, 2, alpha=n, beta=n),
    "margins": lambda x, n: F.margin_ranking_loss(x, Y, Y.sign(), n) + F.hinge_embedding_loss(x, Y.sign(), margin=n),
    "triplets": lambda x, n: F.triplet_margin_loss(x, Y, Y + 1, margin=n, eps=n),
    "cosines": lambda x, n: F.cosine_similarity(x, Y, 2, eps=n) + F.pairwise_distance(Y, Y.flip(0), eps=n),
    "attention that only scales": lambda x, n: F.scaled_dot_product_attention(x, Y, Y, scale=n),
    "padding": lambda x, n: F.pad(x, (1, 2), value=n) + F.pad((x * 9).long(), (1, 2), value=n),
    "windows": lambda x, n: (
        x * torch.hamming_window(5, periodic=True, alpha=n, beta=n / 2) * torch.kaiser_window(5, False, n)
        + torch.signal.windows.general_cosine(5, a=[n, 0.2])
    ),
    "divisors": lambda x, n: (
        F.avg_pool2d(x, 2, divisor_override=int(n * 100)) + F.avg_pool3d(x[None], 2, divisor_override=-int(n * 100))
    ),
    "decimals": lambda x, n: x * x.round(decimals=int(n * 10)) + torch.round(99 * x, decimals=-int(n * 10)),
    "decimals in place": lambda x, n: (x * 1).round_(decimals=int(n * 10)) + torch.round_(9 * x, decimals=int(n * 9)),
    "bounds of quantization": lambda x, n: torch.fake_quantize_per_tensor_affine(x, 0.05, 1, -int(n * 50), int(n * 90)),
    "rows of bounded norm": lambda x, n: shortened(Y[0].clone(), x, n),
    "bags of rows of bounded norm": lambda x, n: shortened_bags(Y[0].clone(), x, n),
    "norm": lambda x, n: x.norm(1 + n) + torch.norm(Y, 3 * n) * torch.linalg.vector_norm(Y, n + 0.5, dim=1).sum(),
    "norm of a vector": lambda x, n: torch.linalg.vector_norm(x, n + 0.5, dim=1),
    "normalized by an order": lambda x, n: F.normalize(x.sin(), 1 + n, eps=n),
    "distances": lambda x, n: (
        torch.cdist(x, Y, p=1 + n) + torch.dist(x, Y, 2 - n) + F.pairwise_distance(x, Y + 9, n + 1).sum()
    ),
    "distances of norm": lambda x, n: (
        F.pdist(x[0], 1 + n).sum() * torch.renorm(x, n + 1, 0, 1.0) + F.triplet_margin_loss(x, Y, Y + 1, p=n + 2)
    ),
    "ranges": lambda x, n: (
        x * torch.histogram(Y, bins=5, range=(-n, n)).hist + Y.histogram(3, range=(-1.0, n))[1].sum()
    ),
    "ranges of columns": lambda x, n: x * torch.histogramdd(Y[0, :, :2], [2, 3], range=[-n, n, -1.0, n]).hist.sum(),
    "orders": lambda x, n: (
        torch.polygamma(int(n * 10), x + 3)
        + torch.matrix_power(x[..., :4], int(n * 9)).sum()
        + (x + 9).mvlgamma(int(n * 10))
    ),
    "quantized": lambda x, n: torch.fake_quantize_per_tensor_affine(x, n / 10, int(n * 20), -20, 20),
    "deviations": lambda x, n: (
        torch.std(x, 1, correction=n) + x.var(1, correction=n) + torch.std_mean(x, correction=n)[0]
    ),
    "rrelu as it is used": lambda x, n: F.rrelu(x, n / 4, n),
    "rrelu in place as it is used": lambda x, n: F.rrelu(x * 1, n / 4, n, inplace=True),
    "activations in place": lambda x, n: (
        F.celu(x * 1, n, inplace=True) + F.hardtanh(x * 1, -n, n, True) + F.celu_(x * 1, n) + F.elu_(x * 1, n)
    ),
    "in place": lambda x, n: (
        (x * 1).lerp_(Y, n) + (x * 1).sub_(Y, alpha=n) + (Y.abs() * x.exp()).pow_(n) + x.sigmoid().mul(1).logit_(n / 9)
    ),
    "powers": lambda x, n: x.exp() ** n + n**x + torch.float_power(x.exp(), n) + torch.special.xlog1py(n, x.exp()),
    "beside complex tensors": lambda x, n: torch.view_as_real(
        complexed(x) * n + torch.add(complexed(x), n) + n / complexed(x) - (n - torch.sub(complexed(x), n).div(n))
    ),
    "written to complex tensors": lambda x, n: torch.view_as_real(written(complexed(x), n).mul_(n).add_(n)),
    "trapezes": lambda x, n: torch.trapezoid(x, dx=n) + torch.cumulative_trapezoid(Y, dx=n)[..., 0],
    "limits": lambda x, n: (
        torch.renorm(x, 2, 0, n) + torch.histc(Y, 5, -n, n) + torch.linalg.matrix_rank(Y @ Y.mT, tol=n)[0]
    ),
    "bases": lambda x, n: x * torch.logspace(0, n, 5, base=n + 1),
    "quantile": lambda x, n: torch.quantile(x, n) + x.nanquantile(n, dim=1),
    "replaced": lambda x, n: (
        torch.nan_to_num(x.log(), n) + torch.logit(x.sigmoid(), eps=n) + torch.isclose(x, Y, atol=n)
    ),
    "activations": lambda x, n: (
        F.leaky_relu(x, n) + F.elu(x, n) + F.celu(x, n) + F.softplus(x, n) + F.hardtanh(x, -n, n)
    ),
}


def outcome(f: Callable[..., Any], x: torch.Tensor, *args: Any) -> list[Any]:
    """Returns the result of a call, the generator's state and the gradient; or the error."""
    seed_generators(7)
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
    """Compares with eager, bit by bit; returns the number of compiled graphs."""
    compiled = minidynamo.compile(f, backend=backend)
    for value in values:
        expected, got = outcome(f, x, value), outcome(compiled, x, value)
        assert len(expected) == len(got) and all(map(same, expected, got)), value
    return int(compiled.stats.graphs)


@pytest.mark.parametrize(
    "name, backend", pairs([*DRAWS, *VALUES_ONLY], ["eager", "aot_eager"], full=DRAWS, always=["aot_eager"])
)
def test_a_number_is_an_input(name: str, backend: str) -> None:
    assert check({**DRAWS, **VALUES_ONLY}[name], VALUES, backend) == 2


@pytest.mark.parametrize("name", CONSTANTS)
def test_other_numbers_are_constants(name: str) -> None:
    """The results are eager's; gradients are added in another order where the graph ends."""
    compiled = minidynamo.compile(CONSTANTS[name], backend="aot_eager")
    for value in VALUES[:4]:
        for one, other in zip(outcome(CONSTANTS[name], X, value), outcome(compiled, X, value), strict=True):
            torch.testing.assert_close(other, one, equal_nan=True)


CHECKPOINTED: dict[str, Callable[..., Any]] = {
    **{name: DRAWS[name] for name in ("dropout", "dropout in place", "draws")},
    **{name: VALUES_ONLY[name] for name in ("momentum", "averages", "huber loss", "lists")},
    "drawn again": lambda x, n: F.dropout(x.repeat(20, 10, 1).sin(), n).cos(),
    "one in another": lambda x, n: (
        checkpoint(lambda y: mixed(F.dropout(y.sin(), n), n), x * n, use_reentrant=False) * n
    ),
    "reentrant": lambda x, n: checkpoint(lambda y: F.dropout(y.sin(), n).cos(), x * n, use_reentrant=True),
    "without a state": lambda x, n: checkpoint(
        lambda y: mixed(y * n, n), x, use_reentrant=False, preserve_rng_state=False
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
        "dropout",
        "draws",
        "momentum",
        "label smoothing",
        "lists like a tensor",
        "lists of ints",
    ],
)
def test_numbers_that_mean_something_else_come_between(name: str) -> None:
    check({**DRAWS, **VALUES_ONLY}[name], SPECIAL, "aot_eager")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_leaf_that_is_made_of_a_number_gets_its_gradient(backend: str) -> None:
    def f(x, n):
        leaves = torch.tensor([n, 1.0, n], requires_grad=True), torch.full((3,), n, requires_grad=True)
        return (x * leaves[0]).sin().sum() * leaves[1].sum(), *leaves

    compiled = minidynamo.compile(f, backend=backend)
    for n in VALUES:
        x = torch.randn(3, requires_grad=True)
        results = []
        for g in (f, compiled):
            made, *leaves = g(x, n)
            made.backward()
            results.append([made, *leaves, *[leaf.grad for leaf in leaves]])
            assert all(leaf.is_leaf for leaf in leaves)
        assert all(map(torch.equal, *results))
    assert compiled.stats.graphs == 2


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
    seed_generators(0)
    model = Model()
    run = minidynamo.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(1, steps + 1):
        model.drop.p = 0.5 * step / (steps + 1)
        model.norm.momentum = 1 / step
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
        return F.dropout(mixed(x, n) * 2, n).sin()

    compiled = minidynamo.compile(f, backend="native")
    for size, n in enumerate(VALUES, 4):
        x = torch.randn(3, size)
        expected, got = outcome(f, x, n), outcome(compiled, x, n)
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(one, other)
    assert compiled.stats.graphs == 2


@pytest.mark.cpp
@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moving_averages_with_a_changing_weight_are_generated_code(dtype: torch.dtype) -> None:
    """Checks rounding like eager's, without a notice about a run operation by operation."""

    def update(averages: list[torch.Tensor], values: list[torch.Tensor], decay: float) -> None:
        for average, value in zip(averages, values):
            average.lerp_(value, 1 - decay)
            value.copy_(average.lerp(torch.lerp(value, average, weight=decay), decay))

    compiled = minidynamo.compile(update)
    seed_generators(0)
    expected = [torch.randn(33, dtype=dtype) for _ in range(4)]
    found = [value.clone() for value in expected]
    for n in VALUES:
        update(expected[:2], expected[2:], n)
        compiled(found[:2], found[2:], n)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert compiled.stats.graphs == 2


def test_sizes_may_vary_beside_numbers() -> None:
    def f(x, n):
        return F.dropout(mixed(x * 2, n), n)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for size, n in enumerate(VALUES, 5):
        x = torch.randn(3, size)
        assert all(map(same, outcome(f, x, n), outcome(compiled, x, n)))
    assert compiled.stats.graphs == 2


def test_a_batch_may_be_as_large_as_the_channels_are_many() -> None:
    def f(x, n):
        return F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True, momentum=n)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for size, n in zip((3, 5, 4, 6), VALUES):
        x = torch.randn(size, 4)
        assert all(map(same, outcome(f, x, n), outcome(compiled, x, n)))
    assert compiled.stats.graphs == 2


def test_what_is_written_to_a_given_output() -> None:
    def f(x, n):
        out = torch.full((3, 4, 5), 9.0)
        torch.pow(x.detach().exp(), n, out=out)
        return out * x

    check(f, VALUES[:3], "aot_eager")


def test_ints_stay_ints_beside_tensors_of_ints() -> None:
    def f(x, n):
        made = [
            CLASSES**n,
            torch.sub(CLASSES, CLASSES, alpha=n),
            torch.addmv(CLASSES[:, 0], CLASSES, CLASSES[0], beta=n),
        ]
        return sum(m.sum() for m in made) * x**n

    check(f, (2, 3, 4, 5), "aot_eager")


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_drop_what_eager_drops(layer: Any) -> None:
    seed_generators(0)
    model = layer(5, 3, 2, dropout=0.4)
    compiled = minidynamo.compile(lambda x: model(x)[0], backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MinidynamoNotice)
        for size in (3, 4, 5):
            x = torch.randn(2, size, 5)
            assert all(map(same, outcome(lambda x: model(x)[0], x), outcome(compiled, x)))


def updated(
    optimizer: Any, backend: str | None, name: str, values: Any, **given: Any
) -> tuple[list[torch.Tensor], int]:
    seed_generators(0)
    layer = nn.Linear(4, 3)
    made = optimizer(layer.parameters(), lr=0.1, fused=True, **given)
    step = minidynamo.compile(made.step, backend=backend) if backend else made.step
    for value in values:
        made.param_groups[0][name] = value
        layer(torch.randn(5, 4)).square().mean().backward()
        step()
        made.zero_grad()
    state = [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return [p.detach() for p in (*layer.parameters(), *state)], step.stats.graphs if backend else 0


FUSED: list[tuple[Any, str, Any, dict[str, Any]]] = [
    (torch.optim.Adam, "betas", [(0.9 - n / 9, 0.99 - n / 9) for n in VALUES], {"amsgrad": True}),
    (torch.optim.AdamW, "weight_decay", VALUES, {}),
    (torch.optim.AdamW, "eps", VALUES, {}),
    (torch.optim.SGD, "momentum", VALUES, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, "dampening", VALUES, {"momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.Adagrad, "lr_decay", VALUES, {}),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize(("optimizer", "name", "values", "given"), FUSED)
def test_whole_updates_of_optimizers(optimizer: Any, name: str, values: Any, given: Any, backend: str) -> None:
    expected, _ = updated(optimizer, None, name, values, **given)
    got, graphs = updated(optimizer, backend, name, values, **given)
    assert all(map(torch.equal, got, expected)) and graphs == 2


def differentiated_twice(f, x, n):
    """Returns the gradient of the sum of squares of `f(x, n)`, and the gradient of its sum of squares."""
    x = x.requires_grad_()
    (first,) = torch.autograd.grad(f(x, n).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return first, second


def test_derivatives_of_derivatives() -> None:
    def f(x, n):
        return mixed(x.sin(), n) * mixed(x, n * 2) * F.dropout(x, n)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for n in VALUES[:4]:
        results = []
        for g in (f, compiled):
            seed_generators(1)
            results.append(differentiated_twice(g, X.double(), n))
        torch.testing.assert_close(*results)
    assert compiled.stats.graphs == 2


def test_hooks_autocast_and_inference_mode() -> None:
    def hooked(x, n):
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * n)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return mixed(x @ x.mT, n).float() * F.dropout(x.sum(), n)

    assert check(hooked, VALUES, "aot_eager") == 2
    compiled = minidynamo.compile(hooked, backend="aot_eager")
    for n in VALUES:
        results = []
        for g in (hooked, compiled):
            seed_generators(2)
            with torch.inference_mode():
                results.append(g(X, n))
        assert torch.equal(*results)
    assert compiled.stats.graphs == 2
