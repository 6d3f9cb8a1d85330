"""`getattr` and its kin."""

# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B009, B010

import pytest

from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Thing

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(lambda: (vector(), Thing(1)))
def questions(x, t):
    setattr(t, "new", x)
    return hasattr(t, "new"), hasattr(t, "nope"), getattr(t, "nope", 5), getattr(t, "x"), t.__class__ is Thing, x + 1


@programs(graphs=0, breaks=None)
def missing_attribute_raises(x):
    return Thing(1).nope


@programs(lambda: (vector(), Thing(1)))
def the_methods_of_object(x, t):
    object.__setattr__(t, "y", x)
    delattr(t, "x")
    return object.__getattribute__(t, "y") + 1, hasattr(t, "x")
