"""Watched deaths of objects deep inside dropped values, of gradients, and of tensors in locals."""

from __future__ import annotations

import collections
import weakref

import torch

import minidynamo
from minidynamo.testing import CompileCounter
from tests.end_to_end.histories import Histories, vector
from tests.end_to_end.programs import rows_of

histories = Histories()
test_same_as_eager = histories.test()


class Part:
    def __init__(self, name="part"):
        self.name = name


class Holder:
    def __init__(self, part=None):
        self.part = part


def waiting(part):
    yield part


def in_a_loop(part):
    holder = Holder(part)
    holder.itself = holder
    return holder


CONTAINERS = {
    "list": lambda part: [[part]],
    "dict": lambda part: {"a": {"b": (part,)}},
    "key": lambda part: {(part, 1): 1},
    "deque": lambda part: collections.deque([[part]]),
    "objects": lambda part: Holder(Holder(part)),
    "closure": lambda part: [lambda: part],
    "bound method": lambda part: part.__init__,
    "generator": waiting,
    "module": lambda part: torch.nn.Sequential(torch.nn.Linear(1, 1), Member(part)),
    "circle": in_a_loop,
    "twice": lambda part: [part, Holder(part)],
}


class Member(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part


def write(holder, dead, x):
    holder.part = None
    return x + 1, len(dead)


def empty(holder, dead, x):
    holder.part.clear()
    return x + 1, len(dead)


def give_up(holder, dead, x):
    holder = x
    return holder + 1, len(dead)


def of_containers(name, make, program):
    def history(compiled):
        dead: list[int] = []
        fn = compiled(program)
        for is_watched in (True, True, False):
            dead.clear()
            part = Part()
            finalizer = weakref.finalize(part, dead.append, 1) if is_watched else None
            holder = Holder({"a": make(part)} if program is empty else make(part))
            del part
            if program is give_up:
                yield fn(holder.__dict__.pop("part"), dead, vector())
            else:
                yield fn(holder, dead, vector())
            if finalizer is not None:
                finalizer.detach()

    history.__name__ = f"{program.__name__}-{name}"
    histories(history)


for _name, _make in CONTAINERS.items():
    of_containers(_name, _make, write)
for _name in ("list", "objects", "closure"):
    of_containers(_name, CONTAINERS[_name], empty)
    of_containers(_name, CONTAINERS[_name], give_up)


class OfTensors:
    def deleted(x, dead):
        y = x + 1
        del x
        return y, len(dead)

    def bound_anew(x, dead):
        x = x + 1
        between = len(dead)
        x = x * 2
        return x, between, len(dead)

    def behind_a_break(x, dead):
        y = x + 1
        minidynamo.graph_break()
        del x
        return y, len(dead)

    def on_the_stack(x, dead):
        return x + two(x := None), len(dead), x


def two(_):
    minidynamo.graph_break()
    return 2


class OfLists:
    def emptied(xs, dead):
        a, b = xs
        y = a + b
        xs.clear()
        found = [len(dead)]
        del a
        found.append(len(dead))
        del b
        return y, found, len(dead)

    def popped(xs, dead):
        y = xs.pop() + 1
        found = [len(dead)]
        a = xs.pop()
        y = y + a
        found.append(len(dead))
        del a
        return y, found, len(dead)

    def list_bound_anew(xs, dead):
        xs = xs[0] + xs[1]
        return xs, len(dead)

    def list_in_a_callee(xs, dead):
        def total(xs):
            found = xs[0] + xs[1]
            del xs[:]
            return found

        return total(xs), len(dead)


@histories
class Deaths:
    def finalizers_deep_inside(compiled):
        log = []

        class Finalized(Part):
            def __del__(self):
                log.append(self.name)

        holder = Holder()

        @compiled
        def replace(x):
            holder.part = None
            log.append("behind")
            return x + 1, [*log]

        for cls in (Finalized, Finalized, Part):
            log.clear()
            holder.part = {"a": [Holder(cls("old"))]}
            yield replace(vector())

    def what_two_places_share_dies_with_the_second(compiled):
        dead = []
        first, second = Holder(), Holder()

        @compiled
        def both(x):
            first.part = None
            between = len(dead)
            second.part = None
            return x + 1, between, len(dead)

        @compiled
        def one(x):
            first.part = None
            return x + 1, len(dead)

        for fn in (both, one):
            for is_watched in (True, False, True):
                dead.clear()
                part = Part()
                finalizer = weakref.finalize(part, dead.append, 1) if is_watched else None
                first.part, second.part = Holder(part), [part]
                del part
                yield fn(vector())
                if finalizer is not None:
                    finalizer.detach()

    def gradients(compiled):
        dead = []
        layer = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)

        @compiled
        def drop(x):
            layer.weight.grad = None
            return x + 1, len(dead)

        @compiled
        def drop_all(x):
            optimizer.zero_grad()
            return x + 1, len(dead)

        @compiled
        def step(x):
            optimizer.step()
            optimizer.zero_grad()
            return x + 1, len(dead)

        @compiled
        def read(x, reference):
            layer.weight.grad = None
            return x + 1, reference() is None

        for fn in (drop, drop_all, step):
            for is_watched in (True, True, None, False):
                dead.clear()
                for parameter in layer.parameters():
                    parameter.grad = None if is_watched is None else torch.ones_like(parameter)
                if is_watched:
                    weakref.finalize(layer.weight.grad, dead.append, 1)
                yield fn(vector())
        for _ in range(2):
            layer.weight.grad = torch.ones(3, 3)
            yield read(vector(), weakref.ref(layer.weight.grad))

    def tensors_in_locals(compiled):
        dead = []

        def made(is_watched):
            tensor = torch.ones(2)
            if is_watched:
                weakref.finalize(tensor, dead.append, 1)
            return tensor

        for program in rows_of(OfTensors):
            fn = compiled(program)
            for is_watched in (True, True, False):
                dead.clear()
                yield fn(made(is_watched), dead), list(dead)
        for program in rows_of(OfLists):
            fn = compiled(program)
            for is_watched in (True, True, False):
                dead.clear()
                yield fn([made(is_watched), made(is_watched)], dead), list(dead)


def test_what_nobody_watches_is_captured_once():
    counter = CompileCounter()
    layer = torch.nn.Linear(3, 3)
    holder = Holder()

    @minidynamo.compile(backend=counter, fullgraph=True)
    def step(x, xs):
        x = layer(x)
        holder.part = {"x": [x.detach()], "tree": Holder(Holder())}
        layer.weight.grad = None
        x = x + xs.pop()
        xs.clear()
        return x

    for _ in range(4):
        layer.weight.grad = torch.ones(3, 3)
        step(torch.ones(3), [torch.ones(3), torch.ones(3)])
    assert counter.frame_count == 1
