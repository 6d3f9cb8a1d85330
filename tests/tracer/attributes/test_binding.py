"""Attributes found on a class."""

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.attributes.binding import MISSING, lookup_on_class
from tests.tracer.capturing import capture, guards_on


def test_library_classes_are_not_guarded():
    model = torch.nn.Linear(2, 2)
    traced = capture(lambda m, x: m(x), model, torch.ones(2, 2))
    assert not [g for g in traced.guards if g.kind is GuardKind.CLASS_ATTR]
    assert GuardKind.TENSOR in guards_on(traced, "m.weight")


def test_a_class_is_looked_through_in_the_order_of_its_bases():
    class Base:
        a = b = 1

    class Derived(Base):
        a = 2

    assert lookup_on_class(Derived, "a") == (2, Derived)
    assert lookup_on_class(Derived, "a", {Derived}) == (1, Base)
    assert lookup_on_class(Derived, "b") == (1, Base)
    assert lookup_on_class(Derived, "c") == (MISSING, None)
