"""Context variables that a program sets and resets."""

from __future__ import annotations

import contextlib
import contextvars

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter
from tests.end_to_end.programs import rows_of

SCALE = contextvars.ContextVar("scale", default=2)
NAME = contextvars.ContextVar("name")


@contextlib.contextmanager
def scaled_by(scale):
    token = SCALE.set(scale)
    try:
        yield
    finally:
        SCALE.reset(token)


def set_for_good(x):
    SCALE.set(SCALE.get() + 1)
    NAME.set(x * 2)
    SCALE.set(SCALE.get() * 2)
    return x * SCALE.get() + NAME.get()


class Captured:
    def set_and_reset(x):
        token = SCALE.set(5)
        y = x * SCALE.get()
        SCALE.reset(token)
        return y + SCALE.get()

    def around_a_block(x):
        with scaled_by(3):
            x = x * SCALE.get()
            with scaled_by(x + 1):
                x = x * SCALE.get()
            x = x * SCALE.get()
        return x * SCALE.get()

    def reset_by_an_error(x):
        try:
            with scaled_by(3):
                x = x * SCALE.get()
                raise ValueError
        except ValueError:
            return x * SCALE.get()

    def reset_to_what_came_before(x):
        SCALE.set(3)
        token = SCALE.set(4)
        SCALE.set(5)
        SCALE.reset(token)
        return x * SCALE.get()

    def never_set(x):
        token = NAME.set("a")
        length = len(NAME.get())
        NAME.reset(token)
        return x * length + NAME.get(7)


class Broken:
    def token_is_returned(x):
        y = x + 1
        return y * 2, SCALE.set(3)

    def break_between(x):
        x = x + 1
        token = SCALE.set(3)
        x = x * SCALE.get()
        minidynamo.graph_break()
        x = x * SCALE.get()
        SCALE.reset(token)
        return x * SCALE.get()

    def resets_in_another_order(x):
        y = x + 1
        first = SCALE.set(3)
        second = SCALE.set(4)
        SCALE.reset(first)
        SCALE.reset(second)
        return y * SCALE.get()

    def reset_twice(x):
        token = SCALE.set(3)
        SCALE.reset(token)
        try:
            SCALE.reset(token)
        except RuntimeError:
            return x * SCALE.get()


def in_a_context(context, fn, x):
    """Returns the result of a call in a context, and the variables afterwards."""

    def shown(value):
        return value.tolist() if isinstance(value, torch.Tensor) else value

    result = context.run(fn, x)
    result = result if isinstance(result, tuple) else (result, None)
    return shown(result[0]), result[1] is None, {var.name: shown(value) for var, value in context.items()}


CAPTURED = [*rows_of(Captured), set_for_good]
BROKEN = rows_of(Broken)


@pytest.mark.parametrize("program", CAPTURED + BROKEN)
@pytest.mark.parametrize("is_set", [False, True], ids=["unset", "set"])
def test_same_as_eager(program, is_set):
    counter = CompileCounter()
    compiled = minidynamo.compile(program, backend=counter, fullgraph=program in CAPTURED, dynamic=False)
    eager_context, context = contextvars.Context(), contextvars.Context()
    if is_set:
        for each in (eager_context, context):
            each.run(SCALE.set, 6)
    for _ in range(2):
        expected = in_a_context(eager_context, program, torch.ones(2))
        assert in_a_context(context, compiled, torch.ones(2)) == expected
    if program in CAPTURED:
        assert counter.frame_count == (2 if program is set_for_good else 1)  # finds a new value each time
