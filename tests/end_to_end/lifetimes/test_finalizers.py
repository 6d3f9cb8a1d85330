"""Objects with visible deaths, by `__del__` or weak references: they live as long as in eager, and no longer."""

from __future__ import annotations

import weakref

import torch

import minidynamo
from tests.end_to_end.histories import Histories, vector

histories = Histories()
test_same_as_eager = histories.test()


def finalized(log):
    class Resource:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            log.append(self.name)

    return Resource


class Value:
    def __init__(self, value=1):
        self.value = value


@histories
class Finalizers:
    def made_and_given_up_in_a_frame(compiled):
        log = []
        Resource = finalized(log)

        @compiled
        def f(x):
            first = Resource("first")
            y = x + 1
            del first
            log.append("between")
            second = Resource("second")
            return y * len(second.name)

        for _ in range(2):
            yield f(vector()), list(log)

    def made_by_a_callee(compiled):
        log = []
        Resource = finalized(log)

        def named(x):
            return [Resource(name).name for name in ("a", "b")], x * 2

        @compiled
        def f(x):
            log.append("before")
            names, y = named(x)
            log.append("after")
            return names, y

        for _ in range(2):
            yield f(vector()), list(log)

    def finalizer_that_the_class_gets_later(compiled):
        log = []

        class Plain:
            scale = 2

        @compiled
        def f(x):
            return x * Plain().scale

        yield f(vector()), list(log)
        Plain.__del__ = lambda self: log.append("died")
        yield f(vector()), list(log)

    def reference_read_behind_its_object(compiled):
        @compiled
        def deleted(x):
            value = Value()
            reference = weakref.ref(value)
            y, before = x + value.value, reference() is value
            del value
            return y, before, reference() is None

        @compiled
        def bound_anew(x):
            value = Value()
            reference = weakref.ref(value)
            y = x * value.value
            value = None
            return y, reference() is None, value

        @compiled
        def still_held(x):
            value = Value()
            reference = weakref.ref(value)
            y = x * value.value
            minidynamo.graph_break()
            return y + 1, reference() is None

        for _ in range(2):
            yield deleted(vector()), bound_anew(vector()), still_held(vector())

    def reference_to_an_argument(compiled):
        @compiled
        def f(value, x):
            reference = weakref.ref(value)
            y = x + value.value
            del value
            return y, reference() is None

        kept = Value()
        for _ in range(2):
            yield f(Value(), vector()), f(kept, vector())

    def reference_made_by_a_callee(compiled):
        def made():
            value = Value()
            return weakref.ref(value), value

        @compiled
        def f(x):
            reference, value = made()
            y = x + value.value
            before = reference() is None
            minidynamo.graph_break()
            between = reference() is None
            value = Value(2)
            return y, before, between, reference() is None

        for _ in range(2):
            yield f(vector())

    def reference_to_a_tensor(compiled):
        @compiled
        def f(x):
            made = x + 1
            reference = weakref.ref(made)
            y = made * 2
            del made
            return y, reference() is None

        for _ in range(2):
            yield f(vector())

    def reference_to_what_an_attribute_held(compiled):
        holder = Value()

        @compiled
        def f(x, reference):
            y = x * holder.value.value
            before = reference() is holder.value
            holder.value = Value(4)
            return y, before, reference() is None

        @compiled
        def popped(x, values, reference):
            y = x * values[0].value
            values.clear()
            return y, reference() is None

        for _ in range(2):
            holder.value = Value(3)
            yield f(vector(), weakref.ref(holder.value))
            values = [Value(3)]
            yield popped(vector(), values, weakref.ref(values[0]))

    def callbacks(compiled):
        log = []

        @compiled
        def deleted(x):
            value = Value()
            reference = weakref.ref(value, lambda _: log.append("dead"))
            y = x + value.value
            log.append("before")
            del value
            log.append("after")
            return y, reference() is None

        @compiled
        def at_the_end(x):
            value = Value()
            reference = weakref.ref(value, lambda _: log.append("dead"))
            y = x + value.value
            log.append(reference() is value)
            return y

        @compiled
        def finalize(x):
            value = Value()
            finalizer = weakref.finalize(value, log.append, "finalized")
            y, alive = x + value.value, finalizer.alive
            del value
            log.append("behind")
            return y, alive, finalizer.alive

        for fn in (deleted, at_the_end, finalize):
            for _ in range(2):
                log.clear()
                yield fn(vector()), list(log)

    def weak_collections(compiled):
        @compiled
        def f(x):
            values, keys, elements = weakref.WeakValueDictionary(), weakref.WeakKeyDictionary(), weakref.WeakSet()
            value = Value()
            values["a"] = value
            keys[value] = 3
            elements.add(value)
            y = x + values["a"].value + keys[value]
            before = len(values), len(keys), len(elements)
            del value
            return y, before, len(values), len(keys), len(elements), "a" in values

        for _ in range(2):
            yield f(vector())

    def finalizer_of_an_argument(compiled):
        log = []
        Resource = finalized(log)

        @compiled
        def deleted(resource, x):
            y = x + len(resource.name)
            del resource
            log.append("behind")
            return y

        @compiled
        def held(resource, x):
            log.append("end")
            return x + 1

        for fn in (deleted, held):
            for _ in range(2):
                log.clear()
                yield fn(Resource("a"), vector()), list(log)


def test_reading_a_parent_breaks_nothing():
    parent = Value(3)

    class Child:
        def __init__(self):
            self.parent = weakref.ref(parent)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.parent().value

    child = Child()
    compiled = minidynamo.compile(lambda x: child.forward(x), backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(vector()).tolist() == [0, 3, 6]


def test_what_is_kept_for_results_alone_watches_nothing():
    def pair(x, w):
        a, b = (x * w).exp(), (x + w).tanh()
        minidynamo.graph_break()
        return a, b

    def f(x, w):
        made = pair(x, w)
        c = made[0] * made[1]
        made = None
        return c

    compiled = minidynamo.compile(f, backend="aot_eager")
    compiled(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))
    assert "MD223" in str(compiled.breaks()) and "MD206" not in str(compiled.breaks())
