"""A custom operator raises in a graph for which the program takes tensors out of containers of the caller.

Tensors die as in eager. After an error, every tensor that is still alive is back in the container.
"""

from __future__ import annotations

import collections
import weakref

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounterWithBackend
from tests.end_to_end.programs import rows_of


@torch.library.custom_op("test_errors_after_pops::checked", mutates_args=())
def checked(x: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    if x[0] == bad:
        raise ValueError("a bad number")
    return x + 0


@checked.register_fake
def _(x, bad):
    return torch.empty_like(x)


class Plain:
    def __init__(self, numbers):
        self.a, self.b, self.c = numbers


class Slots(Plain):
    __slots__ = ("a", "b", "c")


class Lists:
    def __init__(self, numbers):
        self.items = [*numbers]


class Buffers(torch.nn.Module):
    def __init__(self, numbers):
        super().__init__()
        for name, number in zip("abc", numbers):
            self.register_buffer(name, number)


class FromLists:
    def each_from_the_end(xs, bad):
        h = torch.zeros(2)
        while xs:
            h = checked(h + xs.pop(), bad)
        return h

    def each_itself_from_the_front(xs, bad):
        h = torch.zeros(2)
        for _ in range(3):
            h = h + checked(xs.pop(0), bad)
        return h

    def taken_in_front_of_all(xs, bad):
        a, b, c = xs
        xs.clear()
        a = checked(a * 1, bad)
        b = checked(a * 0 + b, bad)
        return checked(c + b * 0, bad)

    def taken_behind_all(xs, bad):
        h = checked(checked(xs[0] * 1, bad) * 0 + xs[1], bad)
        h = checked(h * 0 + xs[2], bad)
        return h + xs.pop() + xs.pop(1)

    def used_long_before_it_is_taken(xs, bad):
        a, b = xs[0] * 1, xs[1] * 1
        a = checked(a, bad)
        del xs[0]
        b = checked(b, bad)
        del xs[0]
        return a + b

    def sliced_away(xs, bad):
        a = checked(xs[0] * 1, bad)
        del xs[:2]
        return checked(a * 0 + xs[0], bad)

    def thrown_away(xs, bad):
        a = checked(xs[0] * 1, bad)
        xs.pop(1)
        a = checked(a * 0 + xs.pop(), bad)
        xs.pop()
        return checked(a * 0 + 2, bad)

    def replaced_by_none(xs, bad):
        h = torch.zeros(2)
        for k in range(3):
            h = checked(h * 0 + xs[k], bad)
            xs[k] = None
        return h

    def another_is_put_there(xs, bad):
        a = checked(xs.pop() * 1, bad)
        xs.append(a)
        xs.insert(0, 5)
        b = checked(xs.pop(1) * 1, bad)
        del xs[0]
        return checked(xs[0] * 0 + b, bad)

    def put_back(xs, bad):
        a = xs.pop()
        h = checked(a * 1, bad)
        xs.append(a)
        return checked(h * 0 + xs.pop(0), bad)

    def turned_round(xs, bad):
        xs.reverse()
        h = checked(xs.pop() * 1, bad)
        return checked(h * 0 + xs.pop(), bad)


class FromDicts:
    def popped_from_a_dict(d, bad):
        h = checked(d.pop("a") * 1, bad)
        h = checked(h * 0 + d.pop("b"), bad)
        return checked(h * 0 + d.pop("c"), bad)

    def cleared(d, bad):
        a, b, c = d.values()
        a = checked(a * 1, bad)
        d.clear()
        return checked(a * 0 + b, bad) + checked(a * 0 + c, bad)

    def written_as_well(d, bad):
        h = checked(d.pop("a") * 1, bad)
        d["n"] = 3
        h = checked(h * 0 + d.pop("b"), bad)
        d["c"] = h
        return checked(h * 0 + 3, bad)

    def numbers_as_well(d, bad):
        d["n"] = 3
        h = checked(d.pop("a") * 1, bad)
        del d["n"]
        return checked(h * 0 + d.pop("b"), bad)

    def none_and_then_removed(d, bad):
        a, d["a"] = d["a"], None
        a = checked(a * 1, bad)
        del d["a"]
        return checked(a * 0 + d.pop("b"), bad)


def attributes_bound_to_none(o, bad):
    h = torch.zeros(2)
    for name in "abc":
        h = checked(h * 0 + getattr(o, name), bad)
        setattr(o, name, None)
    return h


def attributes_deleted(o, bad):
    a = o.a
    del o.a
    h = checked(a * 1, bad)
    del a
    h = checked(h * 0 + o.b, bad)
    del o.b
    return checked(h * 0 + o.c, bad)


def popped_from_a_list_in_an_object(o, bad):
    h = checked(o.items.pop(0) * 1, bad)
    h = checked(h * 0 + o.items.pop(0), bad)
    return checked(h * 0 + o.items.pop(0), bad)


def popped_from_a_deque(q, bad):
    h = checked(q.popleft() * 1, bad)
    h = checked(h * 0 + q.popleft(), bad)
    return checked(h * 0 + q.pop(), bad)


def named(numbers):
    return dict(zip("abc", numbers))


CASES = [
    *((fn, list) for fn in rows_of(FromLists)),
    *((fn, named) for fn in rows_of(FromDicts)),
    *((attributes_bound_to_none, cls) for cls in (Slots, Buffers)),
    (attributes_deleted, Plain),
    (popped_from_a_list_in_an_object, Lists),
    (popped_from_a_deque, collections.deque),
]


def contents(made):
    """Returns the tensors in a container, as lists."""
    if isinstance(made, torch.nn.Module):
        values = made._buffers.values()
    elif isinstance(made, Lists):
        values = made.items
    elif isinstance(made, Plain):
        values = [getattr(made, name, None) for name in "abc"]
    else:
        values = made.values() if isinstance(made, dict) else made
    return sorted(value.tolist() for value in values if isinstance(value, torch.Tensor))


def outcome(call, make, bad, *, held):
    """Returns the result or error of a call, the container afterwards, and the live tensors. `held`: the caller holds
    the tensors, too."""
    numbers = [torch.full((2,), float(k)) for k in (1, 2, 3)]
    watched = [*map(weakref.ref, numbers)]
    made = make(numbers)
    if not held:
        del numbers
    try:
        result = call(made, torch.tensor(float(bad))).tolist()
    except ValueError as error:
        result = str(error)
    return result, contents(made), [watch() is not None for watch in watched]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("fn, make", CASES)
def test_containers_after_an_error(fn, make, held, backend):
    """Checks a container after an error: of tensors that are alive, all that eager's container has."""
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(fn, backend=counter)
    raised = 0
    for bad in (0, 1, 2, 3, 5, 6, 0):
        expected, got = outcome(fn, make, bad, held=held), outcome(compiled, make, bad, held=held)
        if isinstance(expected[0], str):
            raised += 1
            assert got[0] == expected[0] and (not held or all(value in got[1] for value in expected[1])), bad
        else:
            assert got == expected, bad
    assert raised >= 2 and counter.frame_count == 1
