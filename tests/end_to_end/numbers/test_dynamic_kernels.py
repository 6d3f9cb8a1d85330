"""Programs whose sizes and numbers change from call to call: two graphs, the first for one size, the second for all
further sizes."""

from __future__ import annotations

import pytest
import torch

import minidynamo

F = torch.nn.functional
BACKENDS = pytest.mark.parametrize("backend", [pytest.param("native", marks=pytest.mark.cpp), "triton"])
BATCHES = (4, 5, 6, 33)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def chain(x, y):
    return torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x) * x.shape[0]


def attention(q, k, v):
    weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
    return (weights @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1) * 2


def pieces(x, y):
    half = x.shape[0] // 2
    return torch.cat([x[:half] * 2, y, x[half:] + 1]).relu(), x.reshape(-1).sum(), x.amax(0) - y.mean(0)


def normalized(x, w, b):
    return F.gelu(F.layer_norm(x, (16,), w, b)), x.sum(0), torch.softmax(x, 0)


def normalized_in_place(x):
    y = x * 2
    e = torch.exp(y - y.amax(-1, keepdim=True))
    return e, e / e.sum(-1, keepdim=True), x.softmax(-1).add_(x)


PROGRAMS = {
    "results as scratch": (normalized_in_place, lambda n: (normal(n, n + 40),)),
    "rows over a value that dies": (lambda x: (x * 2).softmax(-1).softmax(-1), lambda n: (normal(n, n + 40),)),
    "chain": (chain, lambda n: (normal(n, 8), normal(n, 8))),
    "attention over batches": (attention, lambda n: [normal(n, 2, 7, 4)] * 3),
    "attention over lengths": (attention, lambda n: [normal(2, 2, n, 4)] * 3),
    "pieces": (pieces, lambda n: (normal(n, 8), normal(3, 8))),
    "rows": (normalized, lambda n: (normal(n, 16), normal(16), normal(16))),
    "both sizes": (lambda x: (torch.softmax(x, -1), x.sum(0)), lambda n: (normal(n, n + 3),)),
}


@BACKENDS
@pytest.mark.parametrize("name", PROGRAMS)
def test_changing_sizes(name, backend):
    function, arguments = PROGRAMS[name]
    compiled = minidynamo.compile(function, backend=backend)
    for n in BATCHES:
        torch.testing.assert_close(compiled(*arguments(n)), function(*arguments(n)), rtol=1e-4, atol=1e-5)
    assert compiled.stats.graphs == 2
    assert "int64_t n_s" in compiled.code("kernel") or ': "i64"' in compiled.code("kernel")


@BACKENDS
def test_one_graph_when_asked_for(backend):
    compiled = minidynamo.compile(chain, backend=backend, dynamic=True)
    for n in BATCHES:
        x, y = normal(n, 8), normal(n, 8)
        torch.testing.assert_close(compiled(x, y), chain(x, y), rtol=1e-5, atol=1e-6)
    assert compiled.stats.graphs == 1


@BACKENDS
def test_a_learning_rate_becomes_an_argument_of_the_kernel(backend):
    def step(weight, gradient, rate):
        return weight - gradient * rate, weight.mul(rate).add(gradient, alpha=rate * 0.5)

    compiled = minidynamo.compile(step, backend=backend)
    weight, gradient = normal(9, 7), normal(7)
    for k in range(20):
        rate = 0.1 * 0.9**k
        for got, wanted in zip(compiled(weight, gradient, rate), step(weight, gradient, rate), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    assert compiled.stats.graphs == 2
    assert "double f_rate" in compiled.code("kernel") or 'f_rate: "i64"' in compiled.code("kernel")


@BACKENDS
def test_an_int_becomes_an_argument_of_the_kernel(backend):
    def shifted(x, k):
        return x * k + 1, x.to(torch.int64) + k

    compiled = minidynamo.compile(shifted, backend=backend)
    for k in (3, 5, -7, 2**33):
        for got, wanted in zip(compiled(normal(4, 5), k), shifted(normal(4, 5), k), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    assert compiled.stats.graphs == 2


@BACKENDS
def test_training_with_changing_batches(backend):
    torch.manual_seed(1)
    eager = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    twin = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    twin.load_state_dict(eager.state_dict())

    def loss(model, x, target):
        return F.cross_entropy(model(x), target) + model(x).pow(2).mean() * x.shape[0]

    compiled = minidynamo.compile(loss, backend=backend)
    for n in (*BATCHES, 7, 64):
        x, target = normal(n, 16), torch.arange(n) % 3
        for model, run in ((eager, loss), (twin, compiled)):
            model.zero_grad()
            run(model, x, target).backward()
        for a, b in zip(eager.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4)
    assert compiled.stats.graphs == 2


@pytest.mark.parametrize(
    "program",
    [lambda x, k: x + k * k, lambda x, k: x.float() * (k * k), lambda x, k: torch.full_like(x, k * k) if k > 0 else x],
    ids=["added", "of floats", "filled in"],
)
def test_what_is_computed_of_numbers_does_not_wrap(program):
    compiled, x = minidynamo.compile(program, dynamic=True), torch.tensor([1, -5])
    for k in (3, 5, 2**20):
        torch.testing.assert_close(compiled(x, k), program(x, k), rtol=0, atol=0)
    with pytest.raises(OverflowError, match="int too big to convert"):
        compiled(x, 2**40)
    torch.testing.assert_close(compiled(x, 7), program(x, 7), rtol=0, atol=0)
