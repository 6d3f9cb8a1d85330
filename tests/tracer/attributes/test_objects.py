"""Python's order of lookup on objects."""

from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Thing

programs = Programs()
test_same_as_eager = programs.test()


@programs(lambda: (vector(), Thing(vector())), graphs=0)
class Cases:
    def instance_before_class(x, t):
        t.shared = 9
        t.method = lambda: x
        a = t.shared, t.method()
        del t.shared
        return a, t.shared
