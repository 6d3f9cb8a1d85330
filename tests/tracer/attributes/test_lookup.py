"""Attributes that a program reads or finds missing are guarded."""

import torch

from minidynamo.guards.guard import GuardKind
from tests.end_to_end.programs import Programs, vector
from tests.tracer.attributes.things import Thing
from tests.tracer.capturing import capture, guards_on

programs = Programs()
test_same_as_eager = programs.test()


@programs(lambda: (vector(), Thing(vector())))
class Cases:
    def order_of_lookup(x, t):
        t.read_too = 1
        t.both = 4
        t.twice = x
        return t.x, t.twice, t.shared, t.both, t.read, t.made[0], t.static(1), t.of(x).x, t.method(2), t.read_too


def test_what_was_found_and_what_was_not_is_guarded():
    def read(t):
        return t.x + t.shared + t.method() + hasattr(t, "nope")

    traced = capture(read, Thing(torch.ones(2)))
    kinds = {(g.kind, g.expected) for g in traced.guards if isinstance(g.expected, str)}
    assert (GuardKind.NO_INSTANCE_ATTR, "shared") in kinds
    assert (GuardKind.NO_INSTANCE_ATTR, "method") in kinds
    assert (GuardKind.MISSING_ATTR, "nope") in kinds
    names = {g.expected[0] for g in traced.guards if g.kind is GuardKind.CLASS_ATTR}
    assert names == {"method"}  # the value of plain data is guarded where it is read
    assert GuardKind.TENSOR in guards_on(traced, "t.x")
