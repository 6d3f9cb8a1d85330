"""The autograd history of a tensor dies with its last result, however long the history has grown."""

from __future__ import annotations

import itertools
import time
import weakref

import pytest
import torch

import minidynamo
from minidynamo import compat
from minidynamo.guards.deaths import Lost, dies_unobserved, loses_unnoticed
from minidynamo.testing import CompileCounter
from tests.end_to_end.histories import Histories
from tests.end_to_end.programs import rows_of

histories = Histories()
test_same_as_eager = histories.test()


class Holder:
    pass


def step(x, h):
    return torch.tanh(x + h)


class States:
    def goes_on(state, x, dead):
        state[0] = step(x, state[0])
        return len(dead)

    def is_left_and_dropped(state, x, dead):
        state[0] = step(x, state[0])
        between = len(dead)
        state[0] = x
        return between, len(dead)

    def is_left_elsewhere(state, x, dead):
        state[0], state[1] = x, step(x, state[0])
        return len(dead)

    def is_returned(state, x, dead):
        h, state[0] = state[0], None
        return step(x, h), len(dead)

    def is_cut_off(state, x, dead):
        state[0] = step(x, state[0].detach())
        return len(dead)

    def is_moved(state, x, dead):
        state[1] = state[0]
        state[0] = step(x, x)
        return len(dead)

    def one_of_two_goes_on(state, x, dead):
        state[0], state[1] = step(x, state[0]), x
        return len(dead)

    def is_left_by_a_callee_and_dropped(state, x, dead):
        def write(value):
            state[0] = value

        write(step(x, state[0]))
        between = len(dead)
        write(None)
        return between, len(dead)


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
                yield attempt_step(fn, state, x, dead), len(dead)
            state = None
            yield len(dead)

    history.__name__ = f"{program.__name__}-{make.__name__}"
    histories(history)


def attempt_step(fn, state, x, dead):
    try:
        return fn(state, x, dead)
    except (TypeError, AttributeError) as error:  # the state is gone
        return type(error).__name__


for _program, _make in itertools.product(rows_of(States), (in_a_list, in_a_dict, AsAttributes)):
    of_states(_program, _make)


def in_a_window(state, x, dead, k):
    h, losses = state
    h = step(x, h)
    losses[k % 3] = h.sum()
    state[0] = h
    return len(dead)


@histories
def windows(compiled):
    fn = compiled(in_a_window)
    x, dead = torch.ones(3, requires_grad=True), []
    state = [watched(x, dead), [watched(x, dead).sum() for _ in range(3)]]
    for k in range(8):
        yield fn(state, x, dead, k), len(dead)
    state[0] = None
    yield len(dead)
    state[1].clear()
    yield len(dead)


def test_only_what_dies_is_looked_at():
    """A call that extends a history does not walk the history, and neither does a call that drops a late branch."""
    h = torch.ones(3, requires_grad=True)
    for _ in range(12_000):
        h = h + 1
    branch = [h.sum()]
    for _ in range(100):
        h = h + 1
    assert loses_unnoticed(branch, 0)
    assert loses_unnoticed([h], 0, h, Lost.NO_HISTORY)
    assert loses_unnoticed(branch, 0, h, Lost.NO_HISTORY)
    dead = []
    branch[0] = watched(h, dead).sum()
    assert not loses_unnoticed(branch, 0, h, Lost.NO_HISTORY)


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


def test_what_lives_on_holds_its_history():
    h = torch.ones(3, requires_grad=True)
    for _ in range(12_000):
        h = h + 1
    out, o = torch.stack([h, h * 2]), h * 2
    assert dies_unobserved(o)
    assert dies_unobserved(o, Lost.ITSELF, out, Lost.HELD)
    dead = []
    o = watched(h, dead) * 2
    assert not dies_unobserved(o, Lost.ITSELF, out, Lost.HELD)


def decoder(h, x):
    h = torch.tanh(h + x)
    minidynamo.graph_break()
    return h * 2, h


def decode(decoder, outs, h, x):
    for t in range(outs.shape[0]):
        o, h = decoder(h, x)
        outs[t] = o
        x = o if int(outs.shape[1]) > t % 3 else x
    return outs


def test_a_turn_of_a_loop_does_not_look_through_the_turns_before(monkeypatch):
    realize = []
    held_objects = compat.held_objects
    monkeypatch.setattr(compat, "held_objects", lambda function: realize.append(function) or held_objects(function))
    compiled, x = minidynamo.compile(decode, backend="eager"), torch.ones(3, requires_grad=True)
    found = []
    for turns in (10, 12, 14, 20, 40, 80):
        realize.clear()
        expected, got = (fn(decoder, torch.zeros(turns, 3), x.sin(), x) for fn in (decode, compiled))
        assert torch.equal(expected, got)
        found.append(len(realize))
    assert found[-1] <= 2 * found[-3] + 10  # measured: 2 and 2; 9561 and 591 with a walk over all iterations
    assert compiled.stats.recompiles == 4


def hands_on_all(*args):
    return decoder(*args)[0] + 1


def hands_on_one(h, x):
    return decoder(h, x)[0] + 1


@pytest.mark.parametrize("fn", [hands_on_all, hands_on_one])
def test_what_a_callee_breaks_on_is_held_by_the_caller_instead_of_looked_through(fn, monkeypatch):
    realize = []
    compiled, x = minidynamo.compile(fn, backend="eager"), torch.ones(3, requires_grad=True)
    monkeypatch.setattr(compat, "held_objects", lambda function: realize.append(function) or [])
    for _ in range(3):
        realize.clear()
        got = compiled(x.sin().cos(), x)
    assert torch.equal(got, fn(x.sin().cos(), x)) and not realize
    assert compiled.stats.recompiles == 0


def _seconds(fn, *args):
    started = time.perf_counter()
    fn(*args)
    return time.perf_counter() - started
