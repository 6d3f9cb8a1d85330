"""Who is told when an object dies: checked on real objects; what it means for programs is in test_watched_deaths.py."""

import collections
import enum
import types
import weakref

import pytest
import torch
from torch._dynamo.mutation_guard import GenerationTracker

from minidynamo.guards.deaths import dies_unnoticed, is_noticed, loses_unnoticed


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


def numbers():
    yield 1
    yield 2


@pytest.mark.parametrize(
    "value",
    [1, "text", None, len, Plain, torch.nn, Color.RED, Slotted(), [1], Plain(), torch.ones(1), numbers()],
)
def test_most_values_die_unnoticed(value):
    assert not is_noticed(value) and dies_unnoticed(value)


def test_finalizers_and_callbacks_notice():
    assert is_noticed(Finalized()) and is_noticed(FinalizedSlots())
    value = Plain()
    quiet = weakref.ref(value)
    assert quiet() is value and not is_noticed(value)
    collection = weakref.WeakSet([value])
    assert len(collection) == 1 and is_noticed(value)


def test_a_generator_that_waits_notices():
    generator = numbers()
    assert not is_noticed(generator)
    next(generator)
    assert is_noticed(generator) and len([*generator]) == 1 and not is_noticed(generator)


def test_callbacks_of_tensors_count():
    tensor = torch.ones(1)
    quiet = weakref.ref(tensor)
    assert quiet() is tensor and not is_noticed(tensor)
    finalizer = weakref.finalize(tensor, print)
    assert is_noticed(tensor)
    finalizer.detach()
    assert not is_noticed(tensor)


def test_the_books_that_torch_keeps_of_modules_do_not_count():
    module = torch.nn.Linear(1, 1)
    GenerationTracker.tag(module)
    finalizer = weakref.finalize(module, torch.is_tensor, 1)
    assert finalizer.alive
    assert any(reference.__callback__ is not None for reference in weakref.getweakrefs(module))
    assert not is_noticed(module)


def test_items_of_a_container_that_dies_count():
    value, reference = watched()
    assert reference() is value
    for container in ([value], (value,), {value}, {"a": value}, {value: 1}, collections.deque([1, value])):
        assert not dies_unnoticed(container) and not loses_unnoticed(container)
    assert dies_unnoticed([Plain()]) and loses_unnoticed([Plain(), 1])


def test_what_is_held_under_a_key():
    value, reference = watched()
    assert reference() is value
    slotted, instance = Slotted(), Plain()
    slotted.slot = instance.name = value

    class List(list):
        def __getitem__(self, key):
            raise RuntimeError

    class Dict(dict):
        __getitem__ = List.__getitem__

    owners = [(vars(instance), "name"), (slotted, "slot"), ([1, value], 1), (types.CellType(value), "cell_contents")]
    owners += [(Dict(a=value), "a"), (List([value]), 0), (collections.deque([value]), 0)]
    owners += [(types.MappingProxyType({"a": value}), "a")]
    for owner, key in owners:
        assert not loses_unnoticed(owner, key)
    for owner, key in [({}, "a"), ([], 0), (Slotted(), "slot"), (types.CellType(), "cell_contents")]:
        assert loses_unnoticed(owner, key)
    assert loses_unnoticed({"a": [1, None], "b": value}, "a")


def test_what_a_dict_would_make_is_not_made():
    class Making(dict):
        def __missing__(self, key):
            raise AssertionError

    table = collections.defaultdict(list)
    assert loses_unnoticed(table, "a") and loses_unnoticed(Making(), "a") and not table
