"""`getattr` and its kin."""

# The programs keep the style of users, against the advice of linters.

from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Thing

programs = Programs()
test_same_as_eager = programs.test()


@programs(lambda: (vector(), Thing(1)))
class Cases:
    def the_methods_of_object(x, t):
        object.__setattr__(t, "y", x)
        delattr(t, "x")
        return object.__getattribute__(t, "y") + 1, hasattr(t, "x")
