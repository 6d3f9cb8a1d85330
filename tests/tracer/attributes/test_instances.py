"""Attributes of instances."""

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Slotted, Thing

programs = Programs()
test_same_as_eager = programs.test()


@programs(lambda: (vector(), Slotted(1)))
class Cases:
    def slots(x, s):
        s.b = x * s.a
        s.a = 2
        return s.b + s.a


class Loud(dict):
    def __getitem__(self, key):
        return 100

    def __contains__(self, key):
        return True


@pytest.mark.parametrize(
    "program", [lambda x, t: x * t.x, lambda x, t: x * t.__dict__["x"], lambda x, t: x * ("z" in vars(t))]
)
def test_a_dictionary_with_methods_of_its_own_is_left_to_python(program):
    thing, x = Thing(2), torch.ones(2)
    compiled = minidynamo.compile(program, backend="eager")
    assert torch.equal(compiled(x, thing), program(x, thing))
    thing.__dict__ = Loud(x=3, y=x)
    assert torch.equal(compiled(x, thing), program(x, thing))
    thing.__dict__ = {"x": 4}
    assert torch.equal(compiled(x, thing), program(x, thing))
