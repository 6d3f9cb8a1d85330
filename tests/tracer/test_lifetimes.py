"""Who is told when an object dies: checked on real objects; what it means for frames is in test_finalizers.py."""

import weakref

import pytest
import torch
from torch._dynamo.mutation_guard import GenerationTracker

from minidynamo.tracer.lifetimes import is_noticed


class Plain:
    pass


class Slotted:
    __slots__ = ()


class Finalized:
    def __del__(self):
        pass


class FinalizedSlots:
    __slots__ = ()

    def __del__(self):
        pass


@pytest.mark.parametrize("value", [1, "text", None, len, Plain, torch.nn, Slotted(), [1], Plain(), torch.ones(1)])
def test_most_values_die_unnoticed(value):
    assert not is_noticed(value)


def test_finalizers_and_callbacks_notice():
    assert is_noticed(Finalized()) and is_noticed(FinalizedSlots())
    value = Plain()
    quiet = weakref.ref(value)
    assert quiet() is value and not is_noticed(value)
    collection = weakref.WeakSet([value])
    assert len(collection) == 1 and is_noticed(value)


def test_weak_references_to_tensors_do_not_count():
    tensor = torch.ones(1)
    collection = weakref.WeakValueDictionary(key=tensor)
    assert len(collection) == 1 and not is_noticed(tensor)


def test_the_books_that_torch_keeps_of_modules_do_not_count():
    module = torch.nn.Linear(1, 1)
    GenerationTracker.tag(module)
    assert any(reference.__callback__ is not None for reference in weakref.getweakrefs(module))
    assert not is_noticed(module)
