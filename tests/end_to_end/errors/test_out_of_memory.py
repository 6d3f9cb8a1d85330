"""Memory runs out in a graph: what the program did before the failing operation is kept, on objects and in tensors."""

import pytest
import torch
from torch import nn

import minidynamo
from tests.end_to_end.programs import rows_of

TOO_MANY = 10**14
total = 0


class State:
    def __init__(self):
        self.steps, self.log, self.table, self.last = 0, [], {"a": 0}, None
        self.buffer, self.other = torch.zeros(2), torch.ones(3)
        self.norm = nn.BatchNorm1d(4)
        self.moments = [torch.zeros(4), torch.zeros(4)]

        def count():
            nonlocal_count[0] += 1

        nonlocal_count = self.counts = [0]
        self.count = count
        called = 0

        def closure():
            nonlocal called
            called += 1
            return called

        self.closure = closure

    def contents(self):
        tensors = [self.buffer, self.other, *self.norm.state_dict().values(), *self.moments]
        values = [rounded(tensor) for tensor in tensors], [tensor._version for tensor in tensors]
        counts = [*self.counts, self.closure.__closure__[0].cell_contents]
        return self.steps, [*map(rounded, self.log)], dict(self.table), rounded(self.last), counts, values


def rounded(value):
    return (value.double() * 1e4).round().tolist() if isinstance(value, torch.Tensor) else value


def large(x, n):
    return (x[:, None] * torch.ones(1, n)).exp().sort(1).values.sum(1)


class Programs:
    def attribute(x, n, s):
        s.steps += 1
        s.buffer.add_(1)
        return large(x.sin(), n)

    def before_and_after(x, n, s):
        s.steps += 1
        s.buffer.add_(1)
        y = large(x.sin(), n)
        s.steps += 10
        s.log.append(2)
        return y

    def list_and_dict(x, n, s):
        s.log.append(1)
        s.buffer.mul_(2).add_(1)
        s.table["a"] += 1
        y = large(x, n)
        s.log.append(2)
        s.table["b"] = 2
        return y

    def tensors_in_objects(x, n, s):
        s.last = x.sin()
        s.log.append(x * 2)
        s.buffer.add_(1)
        y = large(x, n)
        s.last = y
        return y

    def view_of_the_memory(x, n, s):
        s.buffer.add_(3)
        s.last = s.buffer[1:]
        return large(x, n)

    def closures(x, n, s):
        s.count()
        s.buffer.add_(s.closure())
        y = large(x, n)
        s.count()
        return y + s.closure()

    def global_counter(x, n, s):
        global total
        total += 1
        s.buffer.add_(1)
        y = large(x, n)
        total += 10
        return y

    def running_statistics(x, n, s):
        s.steps += 1
        y = s.norm(x[None] + torch.arange(3.0)[:, None])
        s.log.append("normalized")
        return large(y.sum(0), n)

    def moments_of_an_optimizer(x, n, s):
        for moment, beta in zip(s.moments, (0.9, 0.99)):
            moment.mul_(beta).addcmul_(x, x, value=1 - beta)
        s.steps += 1
        return large(s.moments[0] / s.moments[1].sqrt(), n)

    def without_writes(x, n, s):
        s.log.append(x.cos())
        y = large(x, n)
        s.log.append(y)
        return y

    def in_a_loop(x, n, s):
        for k in range(3):
            s.log.append(k)
            s.other.add_(k)
            x = large(x, n if k == 1 else 2)
        return x


def outcomes(function):
    """Returns the contents of the state after two calls, after a call without enough memory, and after one more."""
    global total
    state, found = State(), []
    total = 0
    x = torch.linspace(0.1, 0.4, 4)
    for n in (3, 4, TOO_MANY, 5):
        try:
            function(x, n, state)
            error = None
        except RuntimeError as raised:
            error = "memory" in str(raised)
        found.append((error, total, *state.contents()))
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("program", rows_of(Programs))
def test_what_was_done_before_memory_ran_out_is_kept(program, backend):
    expected = outcomes(program)
    assert [error for error, *_ in expected] == [None, None, True, None]
    found = outcomes(minidynamo.compile(program, backend=backend))
    for mine, eager in zip(found, expected):
        assert mine == eager


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_an_effect_that_depends_on_overwritten_memory_is_named(backend):
    def program(x, n, s):
        s.buffer.add_(1)
        s.last = s.buffer * 2
        return large(x, n)

    compiled, s = minidynamo.compile(program, backend=backend), State()
    compiled(torch.ones(4), 3, s), compiled(torch.ones(4), 4, s)
    with pytest.raises(RuntimeError, match="memory") as caught:
        compiled(torch.ones(4), TOO_MANY, s)
    notes = "\n".join(caught.value.__notes__)
    assert f"The changes to `s.last` of {compiled.__qualname__} before this error were not replayed" in notes
    assert s.last.tolist() == [4.0, 4.0]  # never a value computed from a second addition
