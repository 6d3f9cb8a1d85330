"""Tests of minidynamo/tracer/numbers/tensor_items.py: numbers in tensors of one element, followed while tracing with
the rounding of the tensor, and varying numbers that stay in a call."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import BackendError
from minidynamo.testing import CompileCounter, no_recompile

whole = {"backend": "eager", "fullgraph": True}


def number(value, dtype=torch.float32):
    return torch.tensor(value, dtype=dtype)


def added(x, t):
    t += 1
    return x * t.item()


def in_a_list(x, t):
    torch._foreach_add_([t], torch.tensor(1.0, dtype=t.dtype), alpha=1.0)
    torch._foreach_mul_([t], [0.1])
    return x * t.item() + t.tolist()


def copied(x, t):
    t.copy_(torch.as_tensor(t.item() / 3))
    new = torch.zeros((), dtype=t.dtype)
    new.copy_(t).mul_(0.7).add_(t)
    return x * new.item()


def computed(x, t):
    rate = -t / 3 * 0.3 - 0.1
    return x.add(x, alpha=rate).addcdiv(x, x + 1, value=rate)


def made(x, t):
    made = torch.tensor(t.item() * 0.1)
    clone = t.clone()
    t.zero_()
    return x * made.item() * clone.item() + t.item()


def filled(x, t):
    return torch.full_like(x, t) * x + torch.full(x.shape, t + 1) - x.new_full(x.shape, fill_value=t / 3)


PROGRAMS = [added, in_a_list, copied, computed, made, filled]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_are_those_of_eager(program, dtype):
    counter = CompileCounter()
    compiled = minidynamo.compile(program, backend=counter, fullgraph=True)
    x = torch.linspace(-1, 1, 5, dtype=dtype)
    for value in (0.1, 7.0, 1e-3, 123456.789):
        expected, actual = number(value, dtype), number(value, dtype)
        torch.testing.assert_close(compiled(x, actual), program(x, expected), rtol=0, atol=0)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert counter.frame_count == 1


def sizes(x, n):
    half = torch.div(x.size(0), 2, rounding_mode="trunc")
    parts = x.view(half, 2, -1)
    count = (half * n - 1) // 3
    return parts, x[half], x[: half + 1], x.new_zeros(size=(count + 1, half)), torch.arange(half), count.item()


def written_sizes(x, n):
    rows = torch.tensor(x.size(0))
    rows.sub_(n)
    return x[:rows]


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize(("program", "is_whole"), [(sizes, True), (written_sizes, False)])
def test_sizes_in_tensors(program, is_whole):
    compiled = minidynamo.compile(program, backend="eager", fullgraph=is_whole)
    for rows, n in ((4, 3), (8, 3), (6, 5)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x, n), program(x, n), rtol=0, atol=0)
    assert not is_whole or compiled.stats.graphs <= 3


def test_products_that_leave_the_integers_of_tensors():
    @minidynamo.compile(backend="eager")
    def f(n):
        square = torch.tensor(n) * n
        return square.item(), (-square // 7).item(), torch.div(-n, 7, rounding_mode="trunc").item()

    for n in (2, 3, 2**31, 2**32 + 3, -5):
        assert f(n) == f.py_func(n)


class Codebook(torch.nn.Module):
    """A layer that initializes itself in its first step, and does extra work in each fourth step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("is_ready", torch.tensor(False))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if not self.is_ready:
            self.mean.copy_(x[0])
            self.is_ready.fill_(True)
        if self.steps > 0:
            self.mean.lerp_(x.mean(0), 1 / (self.steps.item() + 1))
        self.steps += 1
        return x - self.mean if self.steps % 4 == 0 else x * int(self.steps)


def test_decisions_about_counters_and_flags_in_buffers():
    eager, layer = Codebook(), Codebook()
    minidynamo.compile(layer, backend="aot_eager", fullgraph=True)
    for _ in range(9):
        x = torch.randn(4, 3)
        torch.testing.assert_close(layer(x), eager(x), rtol=0, atol=0)
    torch.testing.assert_close(layer.state_dict(), eager.state_dict(), rtol=0, atol=0)
    assert minidynamo.stats(layer).graphs == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_comparisons_are_made_in_the_dtype_of_the_tensor(dtype):
    compiled = minidynamo.compile(lambda x, t: x * 2 if t < 0.1 else x * 3 if t == 0.7 else x, **whole)
    for value, factor in ((0.1, 1), (0.0999, 2), (0.7, 3), (float("nan"), 1)):
        assert compiled(torch.ones(()), number(value, dtype)) == factor


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
def test_an_integer_is_compared_with_a_float_by_torch():
    compiled = minidynamo.compile(lambda x, n: x * 2 if n > 0.5 else x, backend="eager")
    for value, factor in ((0, 1), (1, 2), (-1, 1)):
        assert compiled(torch.ones(()), torch.tensor(value)) == factor


def test_decisions_are_guarded():
    @minidynamo.compile(**whole)
    def f(x, t):
        return x + 1 if t.item() > 3 else x - 1

    x = torch.zeros(2)
    assert f(x, number(1.0))[0] == -1
    assert f(x, number(4.0))[0] == 1
    with no_recompile():
        assert f(x, number(2.0))[0] == -1


def test_returned_numbers_are_those_before_and_after_a_write():
    @minidynamo.compile(**whole)
    def f(t):
        before = t.item()
        t.add_(1)
        return before, t.item()

    assert f(number(1.5)) == (1.5, 2.5)
    assert f(number(3.0)) == (3.0, 4.0)


def through_another_tensor(x, t, other):
    other += 1
    return x * t.item()


def by_an_operation_that_is_not_followed(x, t, other):
    t.sin_()
    return x * t.item()


def through_its_memory(x, t, other):
    t.data.add_(1)
    t.view(1).sin_()
    return x * t.item()


def one_after_the_other(x, t, other):
    new = [torch.zeros(()), torch.zeros(())]
    torch._foreach_add_(new, [t, new[0]])
    return x * new[1].item()


def of_another_dtype(x, t, other):
    torch._foreach_add_([t], torch.tensor(0.1, dtype=torch.float64), alpha=1.0)
    return x * t.item()


BREAKS = [
    of_another_dtype,
    through_another_tensor,
    by_an_operation_that_is_not_followed,
    through_its_memory,
    one_after_the_other,
]


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("program", BREAKS)
def test_what_cannot_be_followed_is_read_behind_a_break(program):
    compiled = minidynamo.compile(program, backend="eager")
    for value in (1.0, 2.0):
        results = []
        for f in (program, compiled):
            t = number(value)
            results.append(f(torch.ones(3), t, t.detach()))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_memory_that_is_shared_later_is_noticed():
    compiled = minidynamo.compile(through_another_tensor, backend="eager")
    x, t = torch.ones(3), number(1.0)
    assert compiled(x, t, number(5.0))[0] == 1
    assert compiled(x, t, t.detach())[0] == 2


def test_numbers_too_large_for_the_tensor_are_infinite():
    compiled = minidynamo.compile(added, **whole)
    assert torch.isinf(compiled(torch.ones(1), number(float("inf"))))
    f = minidynamo.compile(lambda x, t: x * t.mul_(t).item(), **whole)
    assert torch.isinf(f(torch.ones(1), number(1e30)))


@pytest.mark.parametrize("steps, graphs", [(50, 1), (51, 2), (400, 2)])
def test_a_long_way_to_a_number_is_cut_where_it_is_read(steps, graphs):
    def program(x, t):
        for _ in range(steps):
            t = t + 1
        return x * t.item()

    counter = CompileCounter()
    x, t = torch.ones(2), number(3, torch.int64)
    assert torch.equal(minidynamo.compile(program, backend=counter)(x, t), program(x, t))
    assert counter.frame_count == graphs


def test_a_backend_that_fails_with_numbers_of_any_kind_has_its_own_error():
    def backend(gm, examples):
        raise ValueError("no numbers")

    compiled = minidynamo.compile(lambda x, t: x * t.item(), backend=backend)
    with pytest.warns(MinidynamoNotice, match="MD310"), pytest.raises(BackendError, match="no numbers"):
        compiled(torch.ones(2), number(3.0))


X = torch.arange(6.0).view(2, 3) + 1


def compiled(f):
    return minidynamo.compile(f, backend="eager", fullgraph=True)


def test_the_condition_is_guarded_and_not_the_number():
    f = compiled(lambda x, p: F.dropout(x, p))
    for p in (0.1, 0.2, 0.3):
        f(X, p)
    assert f.stats.graphs == 2 and "relation `0 < p < 1`: to hold" in f.guards()
    assert f(X, 0.0) is X and f.stats.graphs == 3
    f(X, 0.4)
    assert f.stats.graphs == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_branches_as_well_as_beside_operands(backend):
    def f(x, n):
        def normed(x):
            return torch.sub(x, x.sin(), alpha=n) + n

        return minidynamo.cond(x.sum() > n, normed, lambda x: torch.lerp(x, x * 2, n) - n, (x,))

    g = minidynamo.compile(f, backend=backend, fullgraph=True)
    for n in (0.1, 0.2, 0.3, 0.4):
        assert torch.equal(g(X, n), f(X, n)) and torch.equal(g(-X, n), f(-X, n))
    assert g.stats.graphs == 2


@pytest.mark.parametrize("p", [-0.5, 1.5])
def test_numbers_out_of_range_raise_what_eager_raises(p):
    f = minidynamo.compile(lambda x, p: F.dropout(x, p), backend="eager")
    f(X, 0.1), f(X, 0.2)
    with pytest.raises(ValueError, match=f"between 0 and 1, but got {p}"):
        f(X, p)


def padded(x, size, stride):
    """Pads as the convolutions of audio codecs do, whose sizes are buffers."""
    frames = (x.shape[-1] - size + 5) / stride + 1
    frames = torch.ceil(frames).to(torch.int64) - 1
    missing = frames * stride + size - 5 - x.shape[-1]
    return F.pad(x, (max(size // 2, missing), missing)), max(0, missing), torch.floor(frames / 3)


def test_numbers_of_sizes_are_rounded_to_whole_numbers():
    compiled = minidynamo.compile(padded, **whole)
    size, stride = torch.tensor(7), torch.tensor(2)
    for length in (10, 11, 12, 13, 17, 24):
        x = torch.randn(2, length)
        assert repr(compiled(x, size, stride)) == repr(padded(x, size, stride))
    assert compiled.stats.compiles <= 3


class Padded(torch.nn.Module):
    """A convolution of an audio codec: kernel size and stride are buffers, and decisions compare sizes."""

    def __init__(self, kernel_size):
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 1, kernel_size)
        self.register_buffer("stride", torch.tensor(1))
        self.register_buffer("kernel_size", torch.tensor(kernel_size))

    def forward(self, x):
        length, before = x.shape[-1], self.kernel_size - self.stride
        frames = torch.ceil((length - self.kernel_size + before) / self.stride + 1).to(torch.int64) - 1
        missing = frames * self.stride + self.kernel_size - before - length
        if length <= max(before, missing):
            x = F.pad(x, (0, 1))
        return self.conv(F.pad(x, (before, missing), "reflect"))


def test_sizes_of_many_layers_have_one_version_for_all_lengths():
    model = torch.nn.Sequential(*[Padded(3) for _ in range(12)])
    compiled = minidynamo.compile(model, **whole)
    for length in (40, 51, 63):
        x = torch.randn(2, 1, length)
        assert torch.equal(compiled(x), model(x))
    assert minidynamo.stats(compiled).graphs == 2


def test_ints_in_buffers_are_constants_until_they_vary():
    model = Padded(3)
    compiled = minidynamo.compile(model, **whole)
    x = torch.randn(2, 1, 40)
    assert torch.equal(compiled(x), model(x))
    for kernel_size in (4, 5, 6):
        model.kernel_size.fill_(kernel_size)
        assert torch.equal(compiled(x), model(x))
    assert minidynamo.stats(compiled).graphs == 2
