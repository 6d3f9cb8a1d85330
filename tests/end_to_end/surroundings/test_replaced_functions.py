"""Functions of modules and classes that a program replaces and restores, with graph breaks between.

torch.compile 2.13 computes with the replacement after a function of torch is restored after a graph break.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import types
import unittest.mock as mock
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from tests.end_to_end.programs import rows_of

BACKENDS = ("eager", "aot_eager", "native")
library = types.ModuleType("library")
library.doubled = lambda v: v * 2  # type: ignore[attr-defined]
library.table = {"a": 1, "b": 2}  # type: ignore[attr-defined]


class Scale:
    factor = 3

    def apply(self, v):
        return v * self.factor


class Node:
    pass


root = Node()
root.inner = Node()  # type: ignore[attr-defined]
root.inner.act = torch.relu  # type: ignore[attr-defined]
chosen = torch.sigmoid


@contextlib.contextmanager
def replaced(owner, name, new):
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield old
    finally:
        setattr(owner, name, old)


class Programs:
    def function_of_torch(x):
        old = F.silu
        F.silu = lambda v, inplace=False: v + 5
        y = F.silu(x)
        print(end="")
        z = F.silu(x)
        F.silu = old
        return y, z, F.silu(x), old

    def without_a_break(x):
        old = torch.sin
        torch.sin = torch.cos
        y, kept = torch.sin(x), torch.sin
        torch.sin = old
        return y, kept, old, torch.sin(x)

    def wrapper_around_the_old(x):
        old = F.relu
        F.relu = lambda v: old(v) + 1
        try:
            y = F.relu(x - 2)
            print(end="")
            z = F.relu(x - 3)
        finally:
            F.relu = old
        return y, z, F.relu(x)

    def swapped(x):
        F.relu, F.gelu = F.gelu, F.relu
        y = F.relu(x)
        print(end="")
        z = F.relu(x)
        F.relu, F.gelu = F.gelu, F.relu
        return y, z, F.relu(x)

    def saved_in_a_list(x):
        saved = [(F, "silu", F.silu), (math, "sqrt", math.sqrt), (library, "doubled", library.doubled)]
        for owner, name, _ in saved:
            setattr(owner, name, lambda v: v * 3)
        y = F.silu(x) * math.sqrt(2.0)
        print(end="")
        z = library.doubled(x)
        for owner, name, old in saved:
            setattr(owner, name, old)
        return y, z, F.silu(x) * math.sqrt(4.0), library.doubled(x)

    def method_and_number_of_a_class(x):
        scale, method, factor = Scale(), Scale.apply, Scale.factor
        bound = scale.apply
        Scale.apply, Scale.factor = lambda self, v: v - self.factor, 7
        y = scale.apply(x), bound(x)
        print(end="")
        z = scale.apply(x), bound(x)
        Scale.apply, Scale.factor = method, factor
        return y, z, scale.apply(x)

    def end_of_a_chain(x):
        act, old, new = root.inner.act, root.inner, Node()
        new.act = torch.neg
        root.inner = new
        y = root.inner.act(x)
        print(end="")
        z = root.inner.act(x), act(x)
        root.inner = old
        return y, z, root.inner.act(x), act

    def global_and_items(x):
        global chosen
        old, table = chosen, library.table
        chosen = torch.neg
        table["a"], table["b"] = table["b"], table["a"]
        y = chosen(x) * table["a"]
        print(end="")
        z = chosen(x) * table["a"]
        chosen = old
        table["a"], table["b"] = table["b"], table["a"]
        return y, z, chosen(x) * table["a"]

    def builtin(x):
        seen: list[Any] = []
        old = builtins.print
        builtins.print = lambda *args, **options: seen.append(args)
        print("seen")
        y = x + 1
        builtins.print = old
        print(end="")
        return y, len(seen), print is old

    def mocks(x):
        with (
            mock.patch.object(F, "silu", lambda v, inplace=False: v + 5),
            mock.patch.object(library, "doubled", torch.neg),
        ):
            y = F.silu(x), library.doubled(x)
            print(end="")
            z = F.silu(x), library.doubled(x)
        return y, z, F.silu(x), library.doubled(x)

    def context_manager(x):
        with replaced(torch.nn.ReLU, "forward", lambda self, v: v + 3) as old:
            module = torch.nn.ReLU()
            y = module(x)
            print(end="")
            z = module(x), old(module, -x)
        return y, z, module(x)

    def method_of_tensors(x):
        with mock.patch.object(torch.Tensor, "mean", lambda self: self * 100):
            y = x.mean()
            print(end="")
            z = x.mean()
        return y, z, x.mean()


PROGRAMS = rows_of(Programs)
PLACES = (
    *((F, name) for name in ("silu", "relu", "gelu")),
    *((torch, "sin"), (math, "sqrt"), (library, "doubled"), (builtins, "print"), (torch.nn.ReLU, "forward")),
    *((Scale, "apply"), (Scale, "factor"), (root, "inner")),
)


def state():
    return [vars(owner)[name] for owner, name in PLACES], chosen, dict(library.table)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Restores all replaced functions after a test that fails."""
    for owner, name in PLACES:
        monkeypatch.setattr(owner, name, vars(owner)[name])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_replaced_is_put_back(program, backend):
    before = state()
    compiled = minidynamo.compile(program, backend=backend)
    for number in (1.0, 2.0, 3.0):
        expected = program(torch.full((2,), number))
        assert state() == before
        result = compiled(torch.full((2,), number))
        assert state() == before
        torch.testing.assert_close(*map(_numbers, (result, expected)))


def _numbers(value):
    """Converts functions to their hashes, and keeps tensors."""
    if isinstance(value, tuple):
        return [_numbers(item) for item in value]
    return value if isinstance(value, torch.Tensor) else torch.tensor(hash(value))


def test_what_is_replaced_stays_replaced_only_where_the_program_says_so():
    def replace(x, act):
        old = F.silu
        F.silu = act
        return old, F.silu(x)

    compiled = minidynamo.compile(replace, backend="eager")
    original = F.silu
    for act in (torch.neg, torch.cos, torch.sin):
        F.silu = original
        old, y = compiled(torch.ones(2), act)
        assert old is original
        assert F.silu is act
        assert torch.equal(y, act(torch.ones(2)))
