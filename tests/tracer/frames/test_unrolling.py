"""Loops, recurrent layers and lists with trip counts and lengths that differ from call to call."""

from __future__ import annotations

import collections
import fractions
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minidynamo
from minidynamo.errors import RecompileLimit
from minidynamo.observe.comparison import seed_generators
from minidynamo.testing import no_recompile
from tests.pairs import pairs

LENGTHS = range(5, 17)
"""More of them than are unrolled, and enough for what is behind a cut to see that they vary."""
LATER = (4, 17, 30)


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        layer: type[nn.RNNBase] = getattr(nn, kind)
        self.layer = layer(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].tanh().mean(1)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 3)
        states = []
        for t in range(x.shape[1]):
            state = torch.tanh(self.gates(torch.cat([x[:, t], state], 1)))
            states.append(state)
        return torch.stack(states, 1).sum(1)


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(2, 4)
        for k, row in enumerate(x.transpose(0, 1)):
            with torch.no_grad():
                shift = row.mean() * k
            total = total.sin() * self.scale + row + shift
        return total


class Reads(nn.Module):
    """Reads the loop variable after the loop; a missing item raises."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        t, y = -1, x[:, 0]
        for t in range(1, x.shape[1], 2):
            try:
                y = y * self.scale + x[:, t + 1]
            except IndexError:
                y = y - 1
                break
        else:
            y = y * 2
        return y + t


def _check_all_lengths(check: Callable[[int], None]) -> None:
    for length in LENGTHS:
        check(length)
    with no_recompile():
        for length in LATER:
            check(length)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{kind: lambda kind=kind: Recurrent(kind) for kind in ("GRU", "LSTM", "RNN")},  # type: ignore[misc]
    **{cls.__name__: cls for cls in (Cell, Rows, Reads)},
}


def _trained(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    model.zero_grad()
    result = call(x)
    result.square().sum().backward()
    return [result, *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize(("name", "backend"), pairs(MODELS, ["eager", "aot_eager"], full=["Cell"], always=["eager"]))
def test_few_versions_serve_all_lengths(name: str, backend: str) -> None:
    seed_generators(0)
    model = MODELS[name]()
    compiled = minidynamo.compile(lambda x: model(x), backend=backend)

    def check(length: int) -> None:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(_trained(model, compiled, x), _trained(model, model, x))

    _check_all_lengths(check)


def _stacked(xs: Sequence[Tensor]) -> Tensor:
    return torch.stack(xs).sum(0)


def _looped(xs: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(3)
    for x in xs:
        total = total * 0.5 + x
    return total


@pytest.mark.parametrize("make", [list, tuple])
@pytest.mark.parametrize("function", [_stacked, _looped])
def test_lists_of_tensors_may_have_any_length(function: Callable[..., Tensor], make: Callable[..., Any]) -> None:
    compiled = minidynamo.compile(function, backend="eager")

    def check(length: int) -> None:
        xs = make(torch.randn(3) for _ in range(length))
        torch.testing.assert_close(compiled(xs), function(xs), rtol=0, atol=0)

    _check_all_lengths(check)


def _summed(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for t in range(x.shape[0]):
        total = total + x[t] * t
    return total


def test_lengths_that_come_back_keep_their_versions() -> None:
    compiled = minidynamo.compile(_summed, backend="eager")
    for length in (3, 4, 5, 6, 3, 4, 5, 6):
        compiled(torch.ones(length))
    assert compiled.stats.graph_breaks == 0 and compiled.stats.graphs == 4
    assert torch.equal(compiled(torch.arange(9.0)), _summed(torch.arange(9.0)))
    assert "MD218" in str(compiled.explain()) and compiled.stats.graph_breaks > 0


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"dynamic": False}])
def test_who_asks_for_whole_graphs_gets_a_version_for_each_length(options: dict[str, Any]) -> None:
    compiled = minidynamo.compile(_summed, backend="eager", recompile_limit=6, limit_policy="raise", **options)
    for length in range(3, 9):
        compiled(torch.ones(length))
    assert compiled.stats.graphs == 6 and compiled.stats.graph_breaks == 0
    with pytest.raises(RecompileLimit):
        compiled(torch.ones(20))


def test_a_branch_of_cond_is_unrolled() -> None:
    def program(x: Tensor) -> Tensor:
        return minidynamo.cond(x.sum() > 0, _summed, lambda x: x.sum(), (x,))

    compiled = minidynamo.compile(program, backend="eager")
    for length in range(3, 9):
        x = torch.randn(length)
        assert torch.equal(compiled(x), _summed(x) if x.sum() > 0 else x.sum())
    assert compiled.stats.graph_breaks == 0


@torch.library.custom_op("test_unrolling::scaled", mutates_args=())
def _scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


_scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@_scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    if int(factor * 10) > 1e9:  # specializes the number
        raise ValueError("too much")
    return torch.empty_like(x)


KEPT: dict[str, Tensor] = {}


@torch.library.custom_op("test_unrolling::bounded", mutates_args=())
def _bounded(x: Tensor, factor: float) -> Tensor:
    return x * factor


@_bounded.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    if factor > 1e9:
        raise ValueError("too much")
    return torch.empty_like(x)


def _keyed(x: Tensor, n: int) -> Tensor:
    KEPT[f"step {n}"] = x + 1
    return (x + 1) * 2


ITEMS = [torch.full((), float(n)) for n in range(20)]
KEYED = dict(enumerate(ITEMS))

# Numbers that Python, torch or a custom operator takes as constants.
CONSTANTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "an operator of the user's": lambda x, n: _scaled(x + 1, n * 0.1) * 2,
    "a window": lambda x, n: (x + 1) * torch.hann_window(n + 3).sum() * 2,
    "sizes in a tuple": lambda x, n: torch.nn.functional.fractional_max_pool2d(
        x.repeat(1, 16, 16), 2, output_size=(n, n), _random_samples=torch.full((1, 1, 2), 0.3)
    ),
    "classes": lambda x, n: torch.nn.functional.one_hot(torch.arange(3), n + 3).sum(0)[:3] + x,
    "an item of a list": lambda x, n: (x + 1) * ITEMS[n] * 2,
    "an item of a dict": lambda x, n: (x + 1) * KEYED[n] * 2,
    "a key": lambda x, n: _keyed(x, n),
    "a dimension in a tuple": lambda x, n: (x + 1).view(1, 1, 1, 1, 1, 1, 1, 1, 3).sum((n % 8, 8)) * 2,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_number_that_torch_needs_has_few_versions(name: str) -> None:
    function = CONSTANTS[name]
    compiled = minidynamo.compile(function, backend="eager")
    x = torch.randn(3)
    for n in range(2, 8):
        assert torch.equal(compiled(x, n), function(x, n))
    with no_recompile():
        for n in (8, 9, 3, 12):
            assert torch.equal(compiled(x, n), function(x, n))
    assert 1 <= compiled.stats.graph_breaks <= 2  # also in a called function


KEYS = {n * 0.25: n for n in range(1, 20)}
LAYER = nn.LSTM(3, 3, 2)


def _recurrent(x: Tensor, s: float) -> Tensor:
    LAYER.dropout = s / 10
    return LAYER(x.expand(2, 3, 3))[0] + x


def _norms(x: Tensor, s: float) -> Tensor:
    first, second = torch._foreach_norm([x, x + 1], s + 1)
    return first * second * x


# Uses that specialize a float: in Python, numpy, torch, a custom operator, a derivative.
FLOATS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "a key": lambda x, s: (x + 1) * KEYS[s],
    "its text": lambda x, s: (x + 1) * {"0.25": 0.5}.get(str(s), s),
    "text that Python makes": lambda x, s: (x + 1) * float.fromhex(s.hex()),
    "text that numpy makes": lambda x, s: (x + 1) * float(f"{np.float64(s):.2f}"),
    "a complex number": lambda x, s: (x + 1) * abs(complex(s, 1)),
    "a complex number in the graph": lambda x, s: torch.view_as_real(torch.complex(x, x) * complex(s)).sum(-1),
    "an array": lambda x, s: (x + 1) * float(np.interp(s, [0, 5], [1, 2])),
    "a size": lambda x, s: torch.nn.functional.interpolate((x + 1).view(1, 1, 3), scale_factor=1 + s),
    "an operator of the user's": lambda x, s: _scaled(x + 1, s) * 2,
    "a library's function": lambda x, s: (x + 1) * float(fractions.Fraction(s)),
    "dropout of a recurrent layer": _recurrent,
    "a list of tensors": _norms,
}


def _check_that_it_ends_there(compiled: Any, function: Callable[[Tensor, float], Tensor]) -> None:
    """Checks that no value after the third compiles; results and gradients equal those of `function`."""
    counts = []
    for n in range(1, 12):
        made = []
        for call in (compiled, function):
            x = torch.linspace(0.1, 0.7, 3, requires_grad=True)
            seed_generators(n)
            result = call(x, n * 0.25)
            result.square().sum().backward()
            made.append([result.detach(), x.grad])
        torch.testing.assert_close(*made)
        counts.append(compiled.stats.compiles)
    assert counts[-1] == counts[2] and compiled.stats.graph_breaks > 0, counts


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_float_that_has_changed_is_no_constant(name: str, backend: str) -> None:
    function = FLOATS[name]
    compiled = minidynamo.compile(function, backend=backend)
    _check_that_it_ends_there(compiled, function)
    whole = minidynamo.compile(function, backend=backend, fullgraph=True)
    for n in (1, 2, 3):
        seed_generators(n)
        made = whole(torch.ones(3), n * 0.25)
        seed_generators(n)
        torch.testing.assert_close(made, function(torch.ones(3), n * 0.25))


@pytest.mark.parametrize("name", ["a key", "a complex number", "a size"])
def test_a_checkpoint_of_a_float_that_has_changed_is_left_to_python(name: str) -> None:
    function = FLOATS[name]

    def enclosed(x: Tensor, s: float) -> Tensor:
        return torch.utils.checkpoint.checkpoint(function, x, s, use_reentrant=False) * 2

    compiled = minidynamo.compile(enclosed, backend="aot_eager")
    _check_that_it_ends_there(compiled, enclosed)


def test_a_comparison_of_a_float_is_all_that_is_guarded() -> None:
    compiled = minidynamo.compile(lambda x, s: _bounded(x, s) * s, backend="aot_eager")
    x = torch.ones(3)
    for s in (0.1, 0.2, 0.3, 1.0, 2.5, 0.7):
        assert torch.equal(compiled(x, s), x * s * s)
    assert compiled.stats.graphs == 2 and "s <= 1000000000.0" in compiled.guards()
    assert torch.equal(compiled(x, 2e9), x * 2e9 * 2e9) and compiled.stats.graph_breaks == 1


def test_infinity_and_special_probabilities_have_versions() -> None:
    def program(x: Tensor, s: float, p: float) -> Tensor:
        return torch.nn.functional.dropout(x, p) * s

    compiled = minidynamo.compile(program, backend="eager")
    for s, p in ((0.1, 0.1), (0.2, 0.2), (0.3, 0.0), (math.inf, 0.3), (0.4, 1.0), (0.5, 0.4), (0.6, 0.0), (0.7, 1.0)):
        seed_generators(1)
        made = compiled(torch.ones(9), s, p)
        seed_generators(1)
        torch.testing.assert_close(made, program(torch.ones(9), s, p), equal_nan=True)
    assert compiled.stats.graphs == 4 and compiled.stats.graph_breaks == 0


def test_so_has_one_that_only_the_derivative_needs() -> None:
    def program(x: Tensor, n: int) -> Tensor:
        first, second = torch._foreach_pow([x, x + 1], n * 0.5)
        return first * second

    compiled = minidynamo.compile(program, backend="aot_eager")
    x = torch.rand(3, requires_grad=True)

    def check(n: int) -> None:
        for made, wanted in zip(*(torch.autograd.grad(call(x, n).sum(), x) for call in (compiled, program))):
            torch.testing.assert_close(made, wanted)

    for n in range(1, 8):
        check(n)
    with no_recompile():
        check(9)


def _halved(x: Tensor, n: int) -> Tensor:
    while x.shape[0] > 4:
        x = x[: x.shape[0] // 2] * 2
    return x


def _grown(x: Tensor, n: int) -> Tensor:
    while n:
        x, n = torch.tanh(x * 0.5), n - 1
    return x


@pytest.mark.parametrize("function", [_halved, _grown])
def test_loops_that_end_by_a_comparison_may_have_any_number_of_turns(function: Callable[..., Tensor]) -> None:
    compiled = minidynamo.compile(function, backend="eager")

    def check(n: int) -> None:
        x = torch.randn(2**n + n)
        assert torch.equal(compiled(x, n), function(x, n))

    for n in (3, 4, 5, 6, 7, 8, 9, 2, 10):
        check(n)
    with no_recompile():
        for n in (11, 3, 12):
            check(n)


def test_sizes_that_torch_fixes_inside_are_left_to_python():
    def program(x):
        return torch.kron(x, torch.eye(2))

    compiled = minidynamo.compile(program, backend="eager")
    compiles = []
    for rows in range(3, 14):
        x = torch.arange(3.0 * rows).view(rows, 3)
        assert torch.equal(compiled(x), program(x))
        compiles.append(compiled.stats.compiles)
    assert compiles[5] == compiles[-1] <= 8
    assert "MD218" in str(compiled.breaks())


class Layer(nn.Module):
    """A loop whose call is cut; `power` differs between iterations."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.power = 2 if number == 7 else 1
        self.weight = nn.Parameter(torch.full((4,), 1.0 + number / 8))

    def forward(self, x: Tensor) -> Tensor:
        total = (x * self.weight).sum(1, keepdim=True)
        minidynamo.graph_break()
        return x.sin() * self.weight**self.power + total


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(number) for number in range(11)])


class ByIndex(Layers):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(len(self.layers) - 1, -1, -1):
            x = self.layers[i](x)
        return x


class ByCounter(Layers):
    def forward(self, x: Tensor) -> Tensor:
        i = len(self.layers) - 1
        while i >= 0:
            x = self.layers[i](x)
            i -= 1
        return x


class ByArgument(Layers):
    def forward(self, x: Tensor, chosen: int = 0) -> Tensor:
        return torch.relu(self.layers[chosen](x) + chosen)


@pytest.mark.parametrize("kind", [ByIndex, ByCounter, ByArgument])
def test_modules_that_a_varying_index_chooses_share_what_is_compiled(kind):
    model = kind()
    compiled = minidynamo.compile(kind(), backend="eager", limit_policy="raise")  # no frame reaches the limit
    x = torch.randn(3, 4, requires_grad=True)
    for args in [(i,) for i in range(11)] if kind is ByArgument else [(), ()]:
        assert torch.equal(compiled(x, *args), model(x, *args))
    assert "MD218" in str(minidynamo.explain(compiled).breaks())
    with no_recompile():
        for args in [(i,) for i in (7, 10, 0)] if kind is ByArgument else [()]:
            assert torch.equal(compiled(x, *args), model(x, *args))


def test_copies_of_a_list_that_grows_are_left_to_python():
    """As in the drafts of speculative decoding: each call copies all tokens so far and adds some."""
    table = torch.arange(20).roll(3)

    def draft(tokens: list[int], count: int) -> list[int]:
        drafted = list(tokens)
        for _ in range(count):
            drafted.append(int(table[drafted[-1]]))
        return drafted

    compiled = minidynamo.compile(draft, backend="eager", limit_policy="raise")
    tokens = [1]
    for _ in range(12):
        assert compiled(tokens, 2) == draft(tokens, 2)
        tokens = draft(tokens, 2)
    assert "a copy of a list" in str(compiled.breaks())
    with no_recompile():
        assert compiled([7] * 50, 2) == draft([7] * 50, 2)


@pytest.mark.parametrize("copy", [lambda xs: [*xs], lambda xs: (*xs,), lambda xs: xs + xs])
def test_displays_and_sums_of_a_list_that_grows_are_left_to_python(copy: Callable[[Any], Any]) -> None:
    compiled = minidynamo.compile(copy, backend="eager", limit_policy="raise")
    for length in range(1, 8):
        assert len(compiled([torch.ones(2)] * length)) >= length
    assert "a copy of a list" in str(compiled.breaks())
    with no_recompile():
        assert len(compiled([torch.ones(2)] * 20)) >= 20


@pytest.mark.parametrize("copy", [list, tuple])
def test_the_items_of_a_copy_are_those_of_the_list(copy: Callable[[Any], Any]) -> None:
    def doubled(items: list[Tensor], x: Tensor) -> tuple[Any, Tensor]:
        return copy(items), x * 2

    compiled = minidynamo.compile(doubled, backend="eager", limit_policy="raise")
    for length in LENGTHS:
        items = [torch.ones(2) * k for k in range(length)]
        found, twice = compiled(items, items[1])
        assert type(found) is copy and len(found) == length
        assert all(one is other for one, other in zip(found, items))
        assert torch.equal(twice, items[1] * 2)


def _discounted(rewards: list[float], x: Tensor) -> Tensor:
    total, returns = 0.0, []
    for reward in rewards[::-1]:
        total = reward + 0.9 * total
        returns.insert(0, total)
    return x * torch.tensor(returns).sum()


def _mean_of_all(losses: Sequence[float], x: Tensor) -> Tensor:
    return x * (sum(losses) / len(losses))


def _in_pairs(pairs_: list[tuple[Tensor, float]], x: Tensor) -> Tensor:
    for part, weight in pairs_:
        x = x + part * weight
    return x


def _numbers(length: int) -> list[float]:
    return [1.5 + k for k in range(length)]


def _pairs(length: int) -> list[tuple[Tensor, float]]:
    return [(torch.randn(2), 0.5 * k) for k in range(length)]


def _window(length: int) -> collections.deque[float]:
    return collections.deque(_numbers(length), maxlen=40)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (_discounted, _numbers),
        (_mean_of_all, _numbers),
        (_mean_of_all, _window),
        (lambda xs, x: x * max(xs), _numbers),
        (lambda xs, x: x + sum(xs[1:-1]), _numbers),
        (lambda xs, x: x + torch.tensor(xs).mean(), _numbers),
        (lambda xs, x: x + torch.tensor(xs).mean(), _window),
        (_in_pairs, _pairs),
    ],
)
def test_lists_of_numbers_and_pairs_may_have_any_length(
    function: Callable[..., Tensor], make: Callable[[int], Any]
) -> None:
    compiled = minidynamo.compile(function, backend="eager", limit_policy="raise")

    def check(length: int) -> None:
        xs, x = make(length), torch.randn(2)
        torch.testing.assert_close(compiled(xs, x), function(xs, x), rtol=0, atol=0)

    _check_all_lengths(check)
    assert "MD218" in str(compiled.breaks())


def _popped(xs: Any, x: Tensor) -> Tensor:
    return x * xs.pop()


def _reversed_in_place(xs: Any, x: Tensor) -> Tensor:
    xs.reverse()
    return x * xs[0]


def _without_the_first(xs: Any, x: Tensor) -> Tensor:
    del xs[0]
    return x * xs[0]


def _with_another_last(xs: Any, x: Tensor) -> Tensor:
    xs[-1] = 0.25
    return x * 2


def _reversed_with_ends(xs: Any, x: Tensor) -> Tensor:
    """As in PPO scripts: the sum of rewards starts anew at the end of each episode."""
    total = 0.0
    for number, end in zip(reversed(xs), reversed([number > 9 for number in xs])):
        if end:
            total = 0.0
        total = number + 0.9 * total
    return x * total


def _called_with_all(xs: Any, x: Tensor) -> Tensor:
    return x * max(*xs)


@pytest.mark.parametrize("make", [list, collections.deque])
@pytest.mark.parametrize(
    "function",
    [_popped, _reversed_in_place, _without_the_first, _with_another_last, _reversed_with_ends, _called_with_all],
)
def test_code_that_reads_a_length_has_few_versions(function: Callable[..., Tensor], make: Callable[[Any], Any]) -> None:
    compiled = minidynamo.compile(function, backend="eager", limit_policy="raise")

    def check(length: int) -> None:
        one, other, x = make(_numbers(length)), make(_numbers(length)), torch.randn(2)
        torch.testing.assert_close(compiled(one, x), function(other, x), rtol=0, atol=0)
        assert one == other

    _check_all_lengths(check)
    assert "MD218" in str(compiled.breaks())


def test_the_end_flags_of_an_episode_may_have_any_length() -> None:
    def steps(ends: list[bool], x: Tensor) -> Tensor:
        for end in reversed(ends):
            x = x * 0.5 if end else x + 1
        return x

    compiled = minidynamo.compile(steps, backend="eager", limit_policy="raise")

    def check(length: int) -> None:
        ends = [k % 3 == 2 for k in range(length)]
        assert torch.equal(compiled(ends, torch.ones(2)), steps(ends, torch.ones(2)))

    _check_all_lengths(check)


def test_after_a_cut_other_lengths_are_captured_once() -> None:
    """Lengths that follow from each other: the second loop is not unrolled three more times."""

    def collected(xs: list[float], x: Tensor) -> Tensor:
        parts = []
        for number in xs:
            parts.append(x * number)
        return torch.stack(parts).sum(0)

    compiled = minidynamo.compile(collected, backend="eager", limit_policy="raise")
    for length in LENGTHS:
        assert torch.equal(compiled(_numbers(length), torch.ones(2)), collected(_numbers(length), torch.ones(2)))
    assert str(compiled.breaks()).count("stack() of a list was captured for 1 other trip count") == 1


def test_lists_of_modules_have_a_version_for_each_length() -> None:
    """A separately captured loop body would need a version for each module."""

    def applied(layers: list[nn.Module], x: Tensor) -> Tensor:
        for layer in layers[::-1]:
            x = layer(x)
        return x

    layers = [nn.Linear(2, 2) for _ in range(6)]
    compiled = minidynamo.compile(applied, backend="eager")
    for length in range(1, 7):
        assert torch.equal(compiled(layers[:length], torch.ones(2)), applied(layers[:length], torch.ones(2)))
    assert compiled.stats.graph_breaks == 0 and compiled.stats.graphs == 6


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.scores = nn.Linear(4, 8), nn.Linear(8, 2)
        self.saved_log_probs: list[Tensor] = []
        self.rewards: list[float] = []

    def act(self, state: Tensor) -> None:
        chosen = torch.distributions.Categorical(torch.softmax(self.scores(torch.relu(self.hidden(state))), -1))
        action = chosen.sample()
        self.saved_log_probs.append(chosen.log_prob(action))
        self.rewards.append(1.0 + action.item())


def _finish_episode(policy: Policy, optimizer: torch.optim.Optimizer) -> Tensor:
    """As in the policy gradient script among torch's examples."""
    total, losses, returns = 0, [], collections.deque()  # type: ignore[var-annotated]
    for reward in policy.rewards[::-1]:
        total = reward + 0.99 * total
        returns.appendleft(total)
    targets = torch.tensor(returns)
    targets = (targets - targets.mean()) / (targets.std() + 1e-6)
    for log_prob, target in zip(policy.saved_log_probs, targets):
        losses.append(-log_prob * target)
    optimizer.zero_grad()
    loss = torch.cat(losses).sum()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return loss.detach()


@pytest.mark.slow
def test_episodes_of_a_policy_gradient_script_may_have_any_length() -> None:
    mine, eager = Policy(), Policy()
    steps = [(policy, torch.optim.SGD(policy.parameters(), 0.1)) for policy in (mine, eager)]
    compiled = minidynamo.compile(_finish_episode, backend="eager", limit_policy="raise")

    def check(length: int) -> None:
        for policy in (mine, eager):
            torch.manual_seed(length)
            for _ in range(length):
                policy.act(torch.randn(1, 4))
        assert torch.equal(compiled(*steps[0]), _finish_episode(*steps[1]))
        assert mine.rewards == eager.rewards == mine.saved_log_probs == []
        for one, other in zip(mine.parameters(), eager.parameters()):
            assert torch.equal(one, other)

    _check_all_lengths(check)
    assert compiled.stats.compiles < 30
