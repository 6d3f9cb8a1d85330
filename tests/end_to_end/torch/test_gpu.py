"""Programs on a GPU: results, gradients, random numbers and written tensors equal eager's; peak memory stays below
eager's.

All run on a machine with a GPU only. They need a GPU that torch and Triton know.
"""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Of the largest value: what the order of a sum and the last places of a function come to."""


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=dtype)


def whole(high, *shape):
    return torch.randint(high, shape, device="cuda")


def in_place(x):
    x.mul_(2).add_(1)
    x[3:7].zero_()
    return x.t().contiguous() + 1


def autocast(x, w):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.gelu(x @ w).sum()


def branch(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def pools(x):
    return F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.interpolate(x, scale_factor=2, mode="bilinear")


def divided(a, b):
    return a // b, a % b, a & b, a << 1, (a * b).sum(), torch.div(a, b, rounding_mode="trunc"), a / b


def functions(x):
    positive = x.abs() + 0.5
    return (
        *(x.erf(), x.sin() + x.cos(), torch.expm1(x), x.atan2(positive), x.sinh(), positive.log1p(), positive.rsqrt()),
        *(torch.lgamma(positive), positive.pow(2.5), torch.remainder(x, 0.3), torch.fmod(x, 0.3), (x * 9).round()),
    )


def on_both(x, w):
    return (x * 2).cpu()[:, :30] + w[:40], x.sum() + 1, torch.tensor(2.0) * x, w.sum() * x


def rows(x):
    return x.sum(1), x.argmax(1), x.logsumexp(1), x.var(1), x.amax(), x.argmin(), x.mean()


IMAGES = (8, 16, 32, 32)
TRAINED = {
    "pointwise": (lambda x, y: torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x), (1000,), (1000,)),
    "softmax": (lambda x: torch.softmax(x, -1), (37, 1000)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (1000,), w, b), (37, 1000), (1000,), (1000,)),
    "bias": (lambda x, b: F.gelu(x + b), (3000, 500), (500,)),
    "convolution": (lambda x, w: F.relu(F.conv2d(x, w, padding=1)).mean((2, 3)), IMAGES, (16, 16, 3, 3)),
    "pools": (pools, IMAGES),
    "batch_norm": (lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)), IMAGES, (16,), (16,)),
    "group_norm": (lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), IMAGES, (16,), (16,)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (2, 4, 64, 32)),
    "dropout": (lambda x: F.dropout(x * 2, 0.5) + 1, (1000,)),
    "autocast": (autocast, (40, 50), (50, 30)),
    "views": (lambda x: (x.transpose(0, 2).reshape(7, 15) * x.view(15, 7).t(), x.diagonal(dim1=0, dim2=1)), (3, 5, 7)),
    "functions": (functions, (50, 50)),
}
PLAIN = {
    "column sums": (lambda x: (x.sum(0), x.amax(0), x.argmax(0)), lambda: [normal(4096, 300)]),
    "row sums": (rows, lambda: [normal(300, 4097)]),
    "full sums": (lambda x: (x.sum(), x.square().mean(), x.argmax(), x.std()), lambda: [normal(1 << 21)]),
    "integers": (divided, lambda: [whole(100, 1000) - 50, whole(8, 1000) + 1]),
    "index": (lambda x, i: x[i] * 2 + x[3:53], lambda: [normal(100, 20), whole(100, 50)]),
    "index_add": (
        lambda x, i, v: x.index_add(0, i, v) * 2,
        lambda: [normal(9, 20), torch.arange(9).cuda(), normal(9, 20)],
    ),
    "in place": (in_place, lambda: [normal(100, 20)]),
    "random": (
        lambda x: torch.rand_like(x) + torch.randn(1000, device="cuda") + x.bernoulli(0.5),
        lambda: [normal(1000)],
    ),
    "both devices": (on_both, lambda: [normal(40, 50), torch.randn(50, 30)]),
    "break": (branch, lambda: [normal(40, 50)]),
    "sorted": (lambda x: (x.cumsum(0), x.sort()[0], x.topk(3)[1]), lambda: [normal(100)]),
    "joined": (lambda x: (torch.cat([x, x * 2], 1).relu(), x.chunk(3)[1] * 2), lambda: [normal(100, 100)]),
    "empty": (lambda x: (x + 1, x.sum(0)), lambda: [normal(0, 5)]),
}


def results(function, inputs, trained):
    """Returns the result of a call, then the gradients and the inputs afterwards."""
    torch.manual_seed(0)
    inputs = [x.clone().requires_grad_(trained) for x in inputs]
    made = function(*inputs)
    made = made if isinstance(made, tuple) else (made,)
    gradients = torch.autograd.grad([m.cos().sum() for m in made], inputs) if trained else ()
    return [*made, *gradients, *(x.detach() for x in inputs)]


def check(function, inputs, trained):
    expected = results(function, inputs, trained)
    for dynamic in (False, True):
        compiled = minidynamo.compile(function, dynamic=dynamic)
        for _ in range(2):
            for result, wanted in zip(results(compiled, inputs, trained), expected, strict=True):
                assert (result.dtype, result.device, result.stride()) == (wanted.dtype, wanted.device, wanted.stride())
                largest = wanted.double().abs().max().item() if wanted.numel() else 0.0
                limit = TOLERANCE.get(wanted.dtype, 0.0) * largest
                torch.testing.assert_close(result, wanted, rtol=0, atol=limit, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", TRAINED)
def test_training(name, dtype):
    function, *shapes = TRAINED[name]
    if dtype in (torch.bfloat16, torch.float16) and name in ("functions", "pools"):
        pytest.skip("eager rounds between the operations that it does not join")
    check(function, [normal(*shape, dtype=dtype) for shape in shapes], True)


@pytest.mark.parametrize("name", PLAIN)
def test_without_gradients(name):
    function, inputs = PLAIN[name]
    check(function, inputs(), False)


def test_cross_entropy():
    x, target = normal(64, 1000).requires_grad_(), whole(1000, 64)
    target[3] = -100
    compiled = minidynamo.compile(F.cross_entropy)
    torch.testing.assert_close(compiled(x, target), F.cross_entropy(x, target))
    (mine,), (wanted,) = (torch.autograd.grad(f(x, target), x) for f in (compiled, F.cross_entropy))
    torch.testing.assert_close(mine, wanted)


def test_random_numbers_are_eager_s_from_the_first_call_on():
    x = normal(1000).requires_grad_()
    function = lambda x: F.dropout(x * 2, 0.5) + torch.rand_like(x)
    compiled = minidynamo.compile(function)
    torch.manual_seed(0)
    expected = [function(x) for _ in range(3)]
    torch.manual_seed(0)
    for wanted in expected:
        assert torch.equal(compiled(x), wanted)


def test_tensors_that_are_not_aligned():
    # The first call fixes no alignment for later tensors.
    memory = normal(4001)
    compiled = minidynamo.compile(lambda x: x * 2 + 1)
    for start in (0, 1, 0, 2, 4, 1):
        x = memory[start : start + 3997]
        assert torch.equal(compiled(x), x * 2 + 1)


def test_a_kernel_runs_on_the_current_stream():
    x, busy = normal(1 << 20), normal(4096, 4096)
    compiled = minidynamo.compile(lambda x: x * 2 + 1)
    compiled(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(20):  # earlier work in the stream takes a while
            busy = busy @ busy
        late = x + 1
        made = compiled(late)
    stream.synchronize()
    assert torch.equal(made, (x + 1) * 2 + 1)


def test_training_takes_less_memory_than_eager_and_as_much_as_planned():
    def layers():
        return [part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024))]

    peaks = {}
    for name in ("eager", "compiled"):
        torch.manual_seed(0)
        model, x = nn.Sequential(*layers()).cuda(), normal(4096, 1024)
        call = minidynamo.compile(model) if name == "compiled" else model
        for _ in range(3):
            gc.collect()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call(x).square().mean().backward()
            model.zero_grad(set_to_none=True)
            peaks[name] = torch.cuda.max_memory_allocated() - before
    assert peaks["compiled"] < peaks["eager"]


def test_training_steps_converge_as_in_eager():
    losses = {}
    for name in ("eager", "compiled"):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        x, target = normal(256, 32), whole(4, 256)

        def step(model=model, optimizer=optimizer, x=x, target=target):
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = minidynamo.compile(step) if name == "compiled" else step
        losses[name] = torch.stack([run() for _ in range(20)])
    torch.testing.assert_close(losses["compiled"], losses["eager"], rtol=1e-3, atol=1e-4)


def test_one_graph_for_sizes_that_vary():
    backend = CompileCounterWithBackend("native")
    compiled = minidynamo.compile(lambda x: torch.softmax(x * 2, -1), backend=backend)
    for n in (33, 64, 1000, 7):
        x = normal(n, n + 1)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
    assert backend.frame_count == 2
