import random
import string

import pytest

from minidynamo.tracer.calls import set_order
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import SetVariable, TupleVariable


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
