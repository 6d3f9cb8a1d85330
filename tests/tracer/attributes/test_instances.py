"""What instances hold themselves."""

# Programs are written as users write them, not as a linter would.

import pytest

from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Slotted, Thing

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(lambda: (vector(), Slotted(1)))
def slots(x, s):
    s.b = x * s.a
    s.a = 2
    return s.b + s.a


@programs(lambda: (vector(), Slotted(1)))
def an_empty_slot(x, s):
    return x + hasattr(s, "b")


@programs(lambda: (vector(), Thing(2)))
def the_dictionary_of_an_object(x, t):
    t.__dict__["y"] = x
    return t.y + t.__dict__["x"]
