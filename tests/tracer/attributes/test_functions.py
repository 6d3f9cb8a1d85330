"""Attributes of functions and operators."""

import torch

import minidynamo
from tests.end_to_end.programs import Programs
from tests.tracer.attributes.things import Thing

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    def functions_and_classes(x):
        def inner():
            return x

        inner.note = 4
        return inner.__name__, inner.note, Thing.__name__, Thing.shared, Thing.method(Thing(x)), inner() + 1


def test_attributes_of_operators_are_not_denied():
    def f(x):
        return x + 1 if hasattr(torch.ops.aten.sin.default, "_schema") else x

    assert minidynamo.compile(f, backend="eager")(torch.ones(1)).item() == 2
