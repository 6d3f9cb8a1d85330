import random
import string

import pytest

from minidynamo.tracer import set_order
from minidynamo.tracer.constants import key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SetVariable, TupleVariable


def variables(values):
    return [ConstantVariable(value) for value in values]


def tracked(values, cls=set):
    real = cls(values)
    return SetVariable({key_of(item): None for item in variables(values)}, cls, real)


def test_only_values_with_a_hash_of_their_own_have_an_order():
    assert set_order.set_of(variables([1, "a", None, 2.5, b"x"])) == {1, "a", None, 2.5, b"x"}
    assert set_order.set_of([TupleVariable(variables([1, "a"]))]) == {(1, "a")}
    assert set_order.set_of(variables([1, float("nan")])) is None
    assert set_order.set_of([VariableTracker()]) is None


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


@pytest.mark.parametrize("seed", range(20))
def test_an_arrangement_makes_the_same_order(seed):
    chance = random.Random(seed)
    found = tracked(chance.sample(range(1000), chance.randint(2, 40)))
    made_of = set_order.arrangement(found)
    if made_of is not None:
        values = made_of if isinstance(made_of, frozenset) else [key.token for key in made_of]
        assert list(set(values)) == list(found.real)


def test_an_unknown_order_stays_unknown():
    found = SetVariable({key_of(item): None for item in variables("ab")})
    assert set_order.add(found, key_of(ConstantVariable("c"))) and found.real is None
    assert not set_order.add(found, key_of(ConstantVariable("c")))
    assert set_order.discard(found, key_of(ConstantVariable("c"))) and found.real is None
    assert [key.token for key in set_order.arrangement(found)] == ["a", "b"]
