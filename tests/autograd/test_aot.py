"""Tests of minidynamo/autograd/aot.py: whole models, compiled by compilers that run the graphs unchanged."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from minidynamo.config import config
from minidynamo.core.events import on_event
from tests.autograd.programs import assert_same, compile_program, graphs, inputs, interpret, module_program, targets

BATCH = 4


class Block(nn.Module):
    """A pre-norm transformer encoder layer."""

    def __init__(self, size=16, heads=4, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = x + F.dropout(self.out(y), self.dropout, self.training)
        return x + self.mlp(self.second(x))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return F.log_softmax(self.head(x.flatten(1)), dim=-1)


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.table((x.abs() * 10).long().clamp(max=10)).mean(1))


def encoder_layer(**options):
    options = {"batch_first": True, "dim_feedforward": 32, "dropout": 0.0, **options}
    return nn.TransformerEncoderLayer(16, 4, **options)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Tanh()), (BATCH, 8)),
    "conv_batchnorm": (ConvNet, (BATCH, 1, 8, 8)),
    "conv_batchnorm_eval": (lambda: ConvNet().eval(), (BATCH, 1, 8, 8)),
    "block": (Block, (BATCH, 5, 16)),
    "block_dropout": (lambda: Block(dropout=0.3), (BATCH, 5, 16)),
    "encoder_layer": (encoder_layer, (BATCH, 5, 16)),
    "encoder_layer_norm_first": (
        lambda: encoder_layer(norm_first=True, activation="gelu", dropout=0.1),
        (BATCH, 5, 16),
    ),
    "embedding": (Embedded, (BATCH, 7)),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.SiLU()), (2, 1, 4, 4)),
    "batchnorm1d": (lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ELU()), (BATCH, 8)),
    "in_place": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(inplace=True), nn.Linear(6, 3), nn.Dropout(0.5, inplace=True)),
        (BATCH, 8),
    ),
    "lstm_cell": (lambda: nn.Sequential(nn.Linear(8, 6), nn.Hardswish(), nn.Softplus(), nn.Mish()), (BATCH, 8)),
}


@pytest.mark.parametrize("decompose", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_eager(name, decompose):
    build, shape = MODELS[name]
    program, values = module_program(build())

    def make():
        made, leaves = values()
        x = torch.randn(shape, requires_grad=True)
        return [x, *made], [x, *leaves]

    with config.patch(decompose=decompose):
        assert_same(program, make, tolerance=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models_without_grad(name):
    build, shape = MODELS[name]
    program, values = module_program(build())
    with torch.no_grad():
        assert_same(program, lambda: ([torch.randn(shape), *values()[0]], []), tolerance=2e-6)


LOSSES = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.tensor([1, 2, 0, 4]), label_smoothing=0.0),
    "cross_entropy_ignore": lambda x, y: F.cross_entropy(x, torch.tensor([1, -100, 0, 4])),
    "cross_entropy_smooth": lambda x, y: F.cross_entropy(x, torch.tensor([1, 2, 0, 4]), label_smoothing=0.1),
    "kl": lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "cosine": lambda x, y: F.cosine_similarity(x, y).mean(),
    "norm": lambda x, y: (x - y).norm() + x.std() + y.var(0).sum(),
    "logsumexp": lambda x, y: (x.logsumexp(-1) * y.cumsum(0)[:, 0]).sum() + x.prod(),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y).softmax(0).sum(),
    "where": lambda x, y: torch.where(x > y, x * 2, y.exp()).mean(),
    "sorting": lambda x, y: x.sort(-1).values[:, 0].sum() + y.topk(2).values.sum() + x.max(0).values.sum(),
    "gather": lambda x, y: x.gather(1, y.argsort(1)).sum() + x[torch.tensor([1, 1, 3])].sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    assert_same(lambda x, y: (LOSSES[name](x, y),), inputs((4, 5), (4, 5)), tolerance=2e-6)


def test_autocast_inside_the_graph():
    def program(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (F.linear(x, w).float().softmax(-1),)

    assert_same(program, inputs((4, 8), (6, 8)))


def test_a_block_of_autocast_converts_each_weight_once():
    def program(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            once = F.linear(F.linear(x, w), w) * F.linear(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = F.linear(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            return (once.float(), again.float(), F.linear(x, w).float() + F.linear(x, w).float())

    assert_same(program, inputs((4, 8), (8, 8)), tolerance=0)
    casts = [name for name in targets(graphs(program, inputs((4, 8), (8, 8))()[0]).forward) if "_to_copy" in name]
    assert len(casts) == 12  # weight and input once in the first two blocks, twice in the last block; four results


def test_dropout_that_drops_nothing_returns_a_copy():
    def program(x):
        made, mask = torch.native_dropout(x, 0.0, True)
        made.mul_(2)
        return made, mask, torch.native_dropout(x, 0.5, False)[0].add_(1)

    assert_same(program, inputs((4,)), tolerance=0)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("train", [True, False, None])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_dropout_of_a_leaf_draws_what_eager_draws(p, train, backend):
    def program(x):
        return torch.native_dropout(x, p, train)

    def run(function):
        torch.manual_seed(0)
        x = torch.ones(4, 3, requires_grad=True)
        made, kept = function(x)
        (gradient,) = torch.autograd.grad(made.sum(), x)
        return made.detach(), kept, gradient, torch.rand(1)

    torch.testing.assert_close(run(minidynamo.compile(program, backend=backend)), run(program), rtol=0, atol=0)


def test_no_grad_regions_and_switches_inside_the_graph():
    def program(x, y):
        with torch.no_grad():
            scale = x.abs().mean()
        torch.set_grad_enabled(True)
        return (x / scale * y, scale)

    assert_same(program, inputs((4, 5), (4, 5)))
    assert torch.is_grad_enabled()


def test_outputs_that_need_no_grad_make_an_inference_graph():
    seen = []

    def record(kind):
        return lambda gm, examples: (seen.append(kind), interpret(gm, examples))[1]

    for program in (lambda x, y: (x.argmax(), x.detach() * 2), lambda x, y: (x * y,)):
        for args in ([torch.randn(3, requires_grad=True)] * 2, [torch.randn(3), torch.randn(3)]):
            copies = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
            call = compile_program(program, copies, forward=record("f"), backward=record("b"), inference=record("i"))
            assert not call(list(copies))[0].requires_grad or seen[-1] == "f"
    assert seen == ["i", "i", "f", "i"]


def test_backward_is_compiled_at_the_first_backward():
    seen = []

    def backward(gm, examples):
        seen.append([tuple(e.shape) for e in examples])
        return interpret(gm, examples)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    call = compile_program(lambda x, w: ((x @ w).sin(),), [x, w], backward=backward)
    (y,) = call([x, w])
    assert seen == []
    y.sum().backward()
    call([x, w])[0].sum().backward()
    assert seen == [[(3, 4), (4, 2), (3, 2), (3, 2)]]


def test_the_phase_is_published():
    seen = []
    stop = on_event(lambda event: seen.append((event.kind, event.name)))
    compile_program(lambda x: (x + 1,), [torch.ones(2)])
    stop()
    assert ("phase_start", "autograd") in seen and ("phase_end", "autograd") in seen


def test_random_numbers_are_drawn_once_and_in_order():
    def program(x, y):
        a = F.dropout(x, 0.4)
        b = torch.rand(3) + torch.randn(5)[:3]
        c = torch.empty(5).uniform_(1, 2) + torch.bernoulli(torch.full((5,), 0.5))
        torch.rand(2)  # unused, but advances the generator
        return (a.sin() * a, b, c * y, F.rrelu(x, training=True))

    assert_same(program, inputs((4, 5), (4, 5)))
