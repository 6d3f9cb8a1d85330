"""Backwards in stages: gradients leave while backward still runs, and everything else is as in eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import compat
from minidynamo.autograd.backward_stages import in_stages
from minidynamo.autograd.graph.signature import Edge, NodeGraph
from tests.recorded_products import RecordedProducts

BACKENDS = ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


class TwoResults(Model):
    """The second result does not reach the last layer."""

    def forward(self, x, z):
        for layer in self.layers[:3]:
            x = torch.relu(layer(x)) + x
        return self.layers[3](x) * z.sum(), x.sin()


@pytest.fixture(params=[(1,), (100, 200), (10_000,)], ids=str)
def limits(request, monkeypatch):
    monkeypatch.setattr(compat, "bucket_limits", lambda: request.param)
    return request.param


@pytest.fixture
def smallest_buckets(monkeypatch):
    monkeypatch.setattr(compat, "bucket_limits", lambda: (1,))


def build(kind, backend):
    torch.manual_seed(0)
    m = kind().double()
    return m if backend is None else minidynamo.compile(m, backend=backend, fullgraph=True)


def numbers(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(*shape, dtype=torch.float64, generator=generator, requires_grad=True)


def plain(m):
    x = numbers(3, 4)
    y = m(x)
    y.pow(2).sum().backward()
    return [y, x.grad, *(p.grad for p in m.parameters())]


def a_step(m):
    """Reads what an input before the model gets, for two batches of different size."""
    found = []
    for rows in (3, 5, 7):
        x = numbers(rows, 4)
        m(x * 2).pow(2).sum().backward()
        found.append(x.grad)
    return [*found, *(p.grad for p in m.parameters())]


def twice(m):
    y = m(numbers(3, 4)).pow(2).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [p.grad for p in m.parameters()]


def some_gradients(m):
    x = numbers(3, 4)
    y = m(x).pow(2).sum()
    first = torch.autograd.grad(y, [m.layers[2].weight], retain_graph=True)
    second = torch.autograd.grad(y, [m.layers[0].bias, x], retain_graph=True)
    y.backward(inputs=[m.layers[1].weight])
    return [*first, *second, m.layers[1].weight.grad, m.layers[3].weight.grad]


def derivatives_of_gradients(m):
    x = numbers(3, 4)
    gradients = torch.autograd.grad(m(x).pow(3).sum(), [x, *m.parameters()], create_graph=True)
    sum(g.pow(2).sum() for g in gradients).backward()
    return [*gradients, x.grad, *(p.grad for p in m.parameters())]


def batched(m):
    x = numbers(3, 4)
    y = m(x)
    return torch.autograd.grad(y, [*m.parameters()], torch.eye(12).double().view(12, 3, 4), is_grads_batched=True)


def accumulated_under_hooks(m):
    seen = []
    for number, p in enumerate(m.parameters()):
        p.register_hook(lambda g: g * 2)
        p.register_post_accumulate_grad_hook(lambda p, number=number: seen.append(number))
    for _ in range(3):
        m(numbers(3, 4)).pow(2).sum().backward()
    return [torch.tensor(seen), *(p.grad for p in m.parameters())]


def frozen(m):
    for p in m.layers[1].parameters():
        p.requires_grad_(False)
    return plain(m)


PROGRAMS = [plain, a_step, twice, some_gradients, derivatives_of_gradients, batched, accumulated_under_hooks, frozen]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(backend, program, limits):
    torch.testing.assert_close(program(build(Model, backend)), program(build(Model, None)))


def used(m, choose):
    x, z = numbers(3, 4), numbers(2)
    for _ in range(2):
        choose(*m(x * 2, z * 3)).sum().backward()
    return [x.grad, z.grad, *(p.grad for p in m.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "choose", [lambda a, b: a, lambda a, b: b, lambda a, b: a * b], ids=["first", "second", "both"]
)
def test_several_results(backend, choose, limits):
    actual, expected = used(build(TwoResults, backend), choose), used(build(TwoResults, None), choose)
    torch.testing.assert_close(actual, expected)


def test_DDP_4_gradients_leave_one_by_one(smallest_buckets):
    """Between the gradients of two layers, backward computes one layer."""
    events = []

    def train(backend):
        m = build(Model, backend)
        for name, p in m.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: events.append(name))
        for _ in range(2):
            loss = m(numbers(3, 4).detach()).sum()
            events.clear()
            with RecordedProducts(events):
                loss.backward()
            m.zero_grad()
        return [*events]

    expected = train(None)
    assert expected[:6] == ["mm", "mm", "layers.3.bias", "layers.3.weight", "mm", "mm"] and expected.count("mm") == 7
    assert train("aot_eager") == expected


def test_gradients_that_have_left_die(smallest_buckets):
    alive = []
    m = minidynamo.compile(Model(), backend="aot_eager", fullgraph=True)

    def drop(p):
        p.grad = None
        alive.append(sum(q.grad is not None for q in m.parameters()))

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(drop)
    for _ in range(2):
        m(torch.ones(3, 4)).sum().backward()
    assert alive == [0] * 16


def test_captured_backwards(smallest_buckets):
    def train(backend):
        m = build(Model, backend)
        for _ in range(2):
            loss = m(numbers(3, 4)).pow(2).sum()
            if backend is None:
                loss.backward()
            else:
                with minidynamo.captured_backward(backend=backend):
                    loss.backward()
        return [p.grad for p in m.parameters()]

    torch.testing.assert_close(train("aot_eager"), train(None))


def test_an_error_in_a_stage_leaves_nothing_behind(smallest_buckets):
    m = build(Model, "aot_eager")
    fail = [False]

    def check(p):
        if fail[0]:
            raise ValueError("no")

    m.layers[2].weight.register_post_accumulate_grad_hook(check)
    expected = plain(build(Model, None))
    plain(m)
    fail[0] = True
    with pytest.raises(ValueError, match="no"):
        m(numbers(3, 4)).sum().backward()
    fail[0] = False
    m.zero_grad()
    torch.testing.assert_close(plain(m), expected)


def test_explain_shows_the_stages(smallest_buckets):
    m = build(Model, "aot_eager")
    m(numbers(3, 4))
    assert "gradients leave backward in 9 stages, as buckets are full: 1, 1, 1, 1, 1, 1, 1, 1, 1" in str(
        minidynamo.explain(m)
    )


def stages(sizes, limits, others=0):
    """Returns the stages of a graph whose leaves have these (size, dtype), followed by other inputs."""
    inputs = [torch.empty(n, dtype=dtype) for n, dtype in sizes] + [torch.empty(9)] * others
    edges = tuple(Edge(k, True, (), (), (0,)) for k in range(len(inputs)))
    return in_stages(NodeGraph((), edges), inputs, {k: k < len(sizes) for k in range(len(inputs))}, limits).stages


def test_a_stage_ends_where_a_bucket_is_full():
    four = [(1, torch.float32)] * 4  # autograd takes four leaves in the order 0, 2, 1, 3
    assert stages(four, (8,)) == ((0, 2), (1, 3))
    assert stages(four, (4, 12)) == ((0,), (2, 1, 3))
    assert stages(four, (4, 8, 4)) == ((0,), (2, 1), (3,))
    assert stages(four, (12,)) == ((0, 1, 2), (3,))
    assert stages(four, (17,)) == stages(four, (16,)) == stages(four, None) == ()


def test_other_inputs_leave_last():
    assert stages([(1, torch.float32)] * 2, (4,), others=1) == ((0,), (1,), (2,))
    assert stages([(1, torch.float32)] * 2, (8,), others=1) == ((0, 1), (2,))
    assert stages([(1, torch.float32)] * 2, (9,), others=1) == ()


def test_a_bucket_has_one_dtype():
    mixed = [(2, torch.float32), (2, torch.float32), (1, torch.float64), (1, torch.float64)]
    assert stages(mixed, (16,)) == ((0, 1, 2), (3,))
