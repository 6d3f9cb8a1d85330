from __future__ import annotations

import torch
from torch.distributions.utils import lazy_property

import minidynamo
from minidynamo.tracer.polyfills.distributions import class_attribute


class Halved:
    def __init__(self, value):
        self.value = value

    @lazy_property
    def half(self):
        return self.value / 2


def test_a_lazy_property_on_its_class_is_a_property():
    shown = class_attribute(vars(Halved)["half"])
    assert type(shown) is type(Halved.half) and isinstance(shown, property) and shown.fget is Halved.half.fget

    @minidynamo.compile(backend="eager", fullgraph=True)
    def asked(x):
        halved = Halved(x)
        of_class = isinstance(type(halved).half, lazy_property)
        return of_class, "half" in vars(halved), halved.half + halved.half, "half" in vars(halved)

    lazy, before, result, after = asked(torch.ones(2))
    assert (lazy, before, after) == (True, False, True) and torch.equal(result, torch.ones(2))
