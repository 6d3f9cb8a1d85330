from minidynamo.guards.source import Local
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records.side_effects import AttrSet, ContentsChanged, GlobalSet, SideEffects
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable


class Box:
    pass


def test_values_are_found_in_the_order_of_building():
    a, b = ConstantVariable(1), ConstantVariable(2)
    inner = ListVariable([b])
    outer = TupleVariable([a, inner, a])
    found, kept = reachable([outer], SideEffects())
    assert found == [outer, a, inner, b] and kept == []


def test_a_value_may_contain_itself():
    loop = ListVariable([])
    loop.items.append(loop)
    assert reachable([loop], SideEffects())[0] == [loop]


def test_what_lives_outside_is_a_leaf_unless_written_to():
    effects = SideEffects()
    item, value = ConstantVariable(1), ConstantVariable(2)
    outside = ListVariable([item], source=Local("xs"))
    assert reachable([outside], effects)[0] == [outside]
    outside.items.append(value)
    effects.contents_changed(outside)
    found, kept = reachable([], effects)
    assert found == [outside, item, value] and isinstance(kept[0], ContentsChanged)


def test_effects_on_new_objects_count_when_somebody_sees_the_object():
    effects = SideEffects()
    hidden, seen = ObjectVariable(None, Box), ObjectVariable(None, Box)
    effects.set_attr(hidden, "x", ConstantVariable(1))
    effects.set_attr(seen, "x", ConstantVariable(2))
    effects.set_global(globals(), "anything", seen)
    _, kept = reachable([], effects)
    assert [type(effect) for effect in kept] == [AttrSet, GlobalSet] and kept[0].obj is seen


def test_what_the_call_itself_made_counts_when_somebody_has_it_afterwards():
    place = Local("kwargs")
    effects = SideEffects({place})
    fresh, other = ListVariable([], source=place), ListVariable([], source=Local("other"))
    for container in (fresh, other):
        effects.contents_changed(container)

    def changed(*roots):
        return [effect.container for effect in reachable(roots, effects)[1]]

    assert changed() == [other]
    assert changed(TupleVariable([fresh])) == [fresh, other]
    assert changed(ConstantVariable(1, source=place)) == [fresh, other], "another look at the same place"


def test_new_containers_are_rebuilt_not_replayed():
    effects = SideEffects()
    new = ListVariable([ConstantVariable(1)])
    effects.contents_changed(new)
    assert reachable([new], effects)[1] == []
