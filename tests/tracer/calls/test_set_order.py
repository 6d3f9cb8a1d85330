import random
import string

import pytest

from minidynamo.tracer.calls import set_order
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SetStep, SetVariable, TupleVariable


def variables(values):
    return [ConstantVariable(value) for value in values]


def new_set(items):
    return set_order.new_set(map(key_of, items))


def test_only_values_with_a_hash_of_their_own_have_an_order():
    assert new_set(variables([1, "a", None, 2.5, b"x"])).real == {1, "a", None, 2.5, b"x"}
    assert new_set([TupleVariable(variables([1, "a"]))]).real == {(1, "a")}
    assert new_set(variables([1, float("nan")])).real is None
    assert new_set([VariableTracker()]).real is None


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_a_set_with_the_same_history(seed):
    chance = random.Random(seed)
    names = [chance.choice(string.ascii_letters) * chance.randint(1, 3) for _ in range(12)]
    real, mine = set(), SetVariable({}, set, set())
    for name in names:
        key = key_of(ConstantVariable(name))
        if chance.random() < 0.3:
            real.discard(name)
            set_order.discard(mine, key)
        else:
            real.add(name)
            assert set_order.add(mine, key) is (len(mine.items) == len(real) and next(reversed(mine.items)) is key)
        assert list(mine.real) == list(real) and {key.token for key in mine.items} == real


def test_an_unknown_order_stays_unknown():
    found = SetVariable({key_of(item): None for item in variables("ab")})
    assert set_order.add(found, key_of(ConstantVariable("c"))) and found.real is None
    assert not set_order.add(found, key_of(ConstantVariable("c")))
    assert set_order.discard(found, key_of(ConstantVariable("c"))) and found.real is None
    assert [step.method for step in found.steps] == ["add", "discard"]


def test_another_object_takes_the_steps_of_a_new_one_that_is_removed():
    made, gone, kept = SetVariable({}), key_of(VariableTracker()), key_of(VariableTracker())
    for change, key in ((set_order.add, gone), (set_order.add, kept), (set_order.discard, gone)):
        change(made, key)
    (instead,), (added,), (discarded,) = (step.operands for step in made.steps)
    assert instead is discarded and instead is not gone.variable and added is kept.variable
    assert [step.method for step in made.steps] == ["add", "add", "discard"]
    assert instead.python_type is object


def test_clearing_forgets_the_steps_but_those_of_pop():
    made = new_set(variables("abc"))
    made.items.clear()
    set_order.record_step(made, SetStep("clear"))
    assert not made.steps and made.real == set()
    made = new_set(variables("abc"))
    first = set_order.popped(made)
    set_order.record_step(made, SetStep("clear"))
    assert first.token in "abc" and [step.method for step in made.steps] == ["add", "add", "add", "pop", "clear"]
