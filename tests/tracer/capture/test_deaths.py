"""Watchers of deaths: checked on real objects; their meaning for programs is in test_watched_deaths.py."""

import collections
import enum
import weakref

import pytest
import torch
from torch._dynamo.mutation_guard import GenerationTracker

from minidynamo.tracer.capture.deaths import any_dying, any_has_finalizers, has_finalizers


class Plain:
    pass


class Slotted:
    __slots__ = ("slot",)


class Finalized:
    def __del__(self):
        pass


class FinalizedSlots:
    __slots__ = ()

    def __del__(self):
        pass


class Color(enum.Enum):
    RED = 1


def watched():
    value = Plain()
    return value, weakref.ref(value, lambda _: None)


def dies_unnoticed(value):
    return not any_dying([value], any_has_finalizers, lambda part: part is value)


def numbers():
    yield 1
    yield 2


@pytest.mark.parametrize(
    "value",
    [1, "text", None, len, Plain, torch.nn, Color.RED, Slotted(), [1], Plain(), torch.ones(1), numbers()],
)
def test_most_values_die_unnoticed(value):
    assert not has_finalizers(value) and dies_unnoticed(value)


def test_finalizers_and_callbacks_notice():
    assert has_finalizers(Finalized()) and has_finalizers(FinalizedSlots())
    value = Plain()
    quiet = weakref.ref(value)
    assert quiet() is value and not has_finalizers(value)
    collection = weakref.WeakSet([value])
    assert len(collection) == 1 and has_finalizers(value)


class Forwarding:
    def __getattr__(self, name):
        raise AssertionError("a proxy asks this")


def test_callbacks_of_proxies_notice():
    value = Forwarding()
    proxies = [weakref.proxy(value)]
    assert not has_finalizers(value)
    proxies.append(weakref.proxy(value, lambda _: None))
    assert has_finalizers(value)
    del proxies[1]
    assert len(proxies) == 1 and not has_finalizers(value)


def test_a_generator_that_waits_notices():
    generator = numbers()
    assert not has_finalizers(generator)
    next(generator)
    assert has_finalizers(generator) and len([*generator]) == 1 and not has_finalizers(generator)


def test_callbacks_of_tensors_count():
    tensor = torch.ones(1)
    quiet = weakref.ref(tensor)
    assert quiet() is tensor and not has_finalizers(tensor)
    finalizer = weakref.finalize(tensor, print)
    assert has_finalizers(tensor)
    finalizer.detach()
    assert not has_finalizers(tensor)


def test_the_books_that_torch_keeps_of_modules_do_not_count():
    module = torch.nn.Linear(1, 1)
    GenerationTracker.tag(module)
    assert any(reference.__callback__ is not None for reference in weakref.getweakrefs(module))
    assert not has_finalizers(module)
    finalizer = weakref.finalize(module, torch.is_tensor, 1)  # a program may have registered a finalizer
    assert finalizer.alive and has_finalizers(module)


def test_items_of_a_container_that_dies_count():
    wrap = [lambda v: [v], lambda v: (v,), lambda v: {v}, lambda v: {"a": v}, lambda v: {v: 1}]
    wrap.append(lambda v: collections.deque([1, v]))
    for make in wrap:
        value, reference = watched()
        container = make(value)
        assert dies_unnoticed(container)  # the test holds the value, too
        value = None
        assert not dies_unnoticed(container)
        assert reference() in container or reference() in container.values()
    assert dies_unnoticed([Plain()])


class Pair:
    def __init__(self, *parts):
        self.parts = parts


def dying(lost):
    """Returns the class names of all objects that die with the items of a list."""
    found = set()
    any_dying(lost, lambda batch: found.update(type(part).__name__ for part in batch))
    return found


def test_what_nothing_else_refers_to_dies():
    part = Plain()
    holder = Pair([part, part, {"a": (part,)}])
    owner = [holder]
    del holder
    assert "Plain" not in dying([*owner])
    del part
    found = dying([owner.pop()])
    assert found >= {"Pair", "tuple", "list", "dict", "Plain"}


def test_an_object_that_several_hold_dies_with_the_last():
    value, reference = watched()
    owners = [Pair(value), Pair(value)]
    del value
    assert reference() is not None
    assert not any_dying([owners[0]], any_has_finalizers, lambda part: part in owners[:1])
    assert any_dying([*owners], any_has_finalizers, lambda part: part in owners)


def test_a_circle_is_left_to_the_garbage_collector():
    part = Plain()
    part.itself = part
    owner = [Pair(part)]
    del part
    found = dying([owner.pop()])
    assert "Pair" in found and "Plain" not in found


def test_what_is_asked_for_surely_dies():
    part = Plain()
    assert "Plain" not in dying([Pair(part)])
    assert any_dying([Pair(part)], lambda batch: part in batch, lambda value: value is part)


@pytest.mark.parametrize("count", [10, 20_000])
def test_many_objects_are_assumed_to_be_watched(count):
    assert dies_unnoticed([[] for _ in range(count)]) is (count < 10_000)


def test_gradients_die_with_parameters():
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    assert dies_unnoticed(parameter)
    finalizer = weakref.finalize(parameter.grad, print)
    assert not dies_unnoticed(parameter)
    finalizer.detach()


def test_functions_can_be_watched():
    assert dies_unnoticed(lambda: None)
    made = lambda: None  # noqa: E731
    finalizer = weakref.finalize(made, print)
    assert has_finalizers(made)
    finalizer.detach()
