"""The autograd history of a tensor dies in the call that drops its last result, however long the history has grown,
also where a module keeps its last result."""

from __future__ import annotations

import itertools
import time
import weakref

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounter, CompileCounterWithBackend
from tests.end_to_end.histories import Histories
from tests.end_to_end.programs import rows_of

histories = Histories()
test_same_as_eager = histories.test()


def step(x, h):
    return torch.tanh(x + h)


class States:
    def goes_on(state, x):
        state[0] = step(x, state[0])

    def is_left_and_dropped(state, x):
        state[0] = step(x, state[0])
        state[0] = x

    def is_left_elsewhere(state, x):
        state[0], state[1] = x, step(x, state[0])

    def is_returned(state, x):
        h, state[0] = state[0], None
        return step(x, h)

    def is_cut_off(state, x):
        state[0] = step(x, state[0].detach())

    def is_moved(state, x):
        state[1] = state[0]
        state[0] = step(x, x)

    def one_of_two_goes_on(state, x):
        state[0], state[1] = step(x, state[0]), x

    def is_left_by_a_callee_and_dropped(state, x):
        def write(value):
            state[0] = value

        write(step(x, state[0]))
        write(None)


class AsAttributes:
    """A state of two attributes with the item assignment of a list."""

    def __init__(self, *values):
        self.first, self.second = values

    def __getitem__(self, key):
        return self.second if key else self.first

    def __setitem__(self, key, value):
        if key:
            self.second = value
        else:
            self.first = value


def in_a_list(*values):
    return [*values]


def in_a_dict(*values):
    return dict(enumerate(values))


def watched(x, dead):
    """Returns a tensor with a history, which keeps a second, watched tensor."""
    kept = torch.rand(3)
    weakref.finalize(kept, dead.append, 1)
    return x * kept


def of_states(program, make):
    def history(compiled):
        fn = compiled(program)
        x = torch.ones(3, requires_grad=True)
        for is_watched in (False, False, True, True, False):
            dead = []
            values = [watched(x, dead) if is_watched else x * 2 for _ in range(2)]
            state = make(*values)
            values.clear()
            for _ in range(3):
                yield attempt_step(fn, state, x), len(dead)
            state = None
            yield len(dead)

    history.__name__ = f"{program.__name__}-{make.__name__}"
    histories(history)


def attempt_step(fn, state, x):
    try:
        return fn(state, x)
    except (TypeError, AttributeError) as error:  # the state is gone
        return type(error).__name__


for _program, _make in itertools.product(rows_of(States), (in_a_list, in_a_dict, AsAttributes)):
    of_states(_program, _make)


def in_a_window(state, x, k):
    h, losses = state
    h = step(x, h)
    losses[k % 3] = h.sum()
    state[0] = h


@histories
def windows(compiled):
    fn = compiled(in_a_window)
    x, dead = torch.ones(3, requires_grad=True), []
    state = [watched(x, dead), [watched(x, dead).sum() for _ in range(3)]]
    for k in range(8):
        yield fn(state, x, k), len(dead)
    state[0] = None
    yield len(dead)
    state[1].clear()
    yield len(dead)


def test_a_call_takes_no_longer_for_a_long_history():
    counter = CompileCounter()

    @minidynamo.compile(backend=counter)
    def advance(state, x):
        h, c = state["h"]
        h = torch.tanh(x + h)
        state["h"] = (h, h + c)

    x = torch.ones(3, requires_grad=True)
    state = {"h": (x * 2, x * 3)}
    for _ in range(2):
        advance(state, x)
    few = min(_seconds(advance, state, x) for _ in range(20))
    for _ in range(500):
        state["h"] = tuple(torch.tanh(part) for part in state["h"])
    many = min(_seconds(advance, state, x) for _ in range(20))
    assert many < 5 * few  # measured: 1.0; 40 with a walk over all
    assert counter.frame_count == 1


def _seconds(fn, *args):
    started = time.perf_counter()
    fn(*args)
    return time.perf_counter() - started


class Attention(nn.Module):
    """A layer over the edges of a graph, which keeps its weights for inspection."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2, 1)
        self.weights: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = self.score(x).squeeze(-1).exp()
        self.weights = scores / torch.zeros(3).index_add(0, target, scores)[target]
        return torch.zeros(3, 2).index_add(0, target, x * self.weights[:, None])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_result_is_replaced_whose_history_backward_has_freed(backend: str) -> None:
    torch.manual_seed(0)
    module, target = Attention(), torch.tensor([0, 1, 1, 2])
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(module.forward, backend=counter, fullgraph=True)
    inputs = [torch.randn(4, 2) for _ in range(3)]
    seen = []
    for x in inputs:
        module.zero_grad()
        result = compiled(x, target)
        result.pow(2).sum().backward()
        assert module.weights is not None and module.score.weight.grad is not None
        seen.append((result.detach(), module.weights.detach(), module.score.weight.grad))
    assert counter.frame_count == 1
    for x, found in zip(inputs, seen):
        module.zero_grad()
        result = module(x, target)
        result.pow(2).sum().backward()
        torch.testing.assert_close(found, (result.detach(), module.weights.detach(), module.score.weight.grad))
