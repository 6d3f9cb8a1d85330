"""`getattr` and its kin."""

# The programs keep the style of users, against the advice of linters.

import pytest

from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Thing

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(lambda: (vector(), Thing(1)))
def the_methods_of_object(x, t):
    object.__setattr__(t, "y", x)
    delattr(t, "x")
    return object.__getattribute__(t, "y") + 1, hasattr(t, "x")
