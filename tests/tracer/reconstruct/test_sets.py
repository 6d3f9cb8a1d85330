import pytest

from minidynamo.core.names import Namespace
from minidynamo.errors import InternalError
from minidynamo.guards.source import Local
from minidynamo.tracer.calls import set_order
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.reconstruct.sets import replay_set_steps
from minidynamo.tracer.records.constants import from_constant, key_of
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.constants import ConstantVariable as C
from minidynamo.variables.containers import SetStep, SetVariable


def keys(values):
    return [key_of(C(value)) for value in values]


def rebuilt(*variables, **outside):
    """Returns the values of these trackers; `outside` has the objects at their sources."""
    names = Namespace(outside)
    known = {v: v.source.name for v in variables if v.source is not None}
    rebuild = Rebuilder(names, SideEffects(), known, variables)
    replay_set_steps(rebuild, variables)
    texts = [rebuild.value(variable) for variable in variables]
    local = {**names.values, **outside}
    exec("\n".join(rebuild.lines), local)
    return [eval(text, local) for text in texts]


def test_steps_of_several_sets_are_taken_in_their_order():
    s = SetVariable({}, source=Local("s"))
    for key in keys([40, 8]):
        set_order.add(s, key)
    union = set_order.set_of_step(keys([0, 1, 40, 8]), set, SetStep("union", (s,)))
    set_order.discard(s, keys([8])[0])
    set_order.discard(union, keys([0])[0])
    expected, real = {0, 1}, {0, 1}
    expected.update((40, 8))
    both = expected.union()
    expected.discard(8)
    both.discard(0)
    assert list(map(list, rebuilt(union, s, s=real))) == [list(both), list(expected)]
    assert list(real) == list(expected)


def test_sets_that_are_made_here():
    made = set_order.new_set(keys([8, 0, 16]))
    set_order.discard(made, keys([8])[0])
    expected = {8, 0, 16}
    expected.discard(8)
    literal = frozenset("ab")
    found = rebuilt(made, SetVariable({}), from_constant(literal, lasting=True))
    assert list(found[0]) == list(expected) and found[1] == set() and found[2] is literal


def test_a_set_without_history_is_no_value_of_the_program():
    with pytest.raises(InternalError, match="MD260"):
        rebuilt(SetVariable(dict.fromkeys(keys([1, 2]))))
