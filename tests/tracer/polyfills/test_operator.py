import operator
from types import SimpleNamespace

import pytest

from minidynamo.tracer.polyfills import operator as twins
from minidynamo.tracer.records.registry import POLYFILLS
from tests.tracer.polyfills.agreement import NUMBERS, calls_of

CASES = {
    operator.abs: [(-3,)],
    operator.inv: [(5,)],
    operator.concat: [([1], [2]), ("a", "b"), ((), (1,))],
    operator.iconcat: [([1], [2]), ("a", "b")],
    operator.countOf: [(NUMBERS, NUMBERS[0]), ("abca", "a"), ([], 1)],
    operator.indexOf: [(NUMBERS, NUMBERS[-1]), ((1, 2, 3), 2)],
    operator.call: [(max, 1, 2), (dict, {"a": 1})],
}
NESTED = SimpleNamespace(a=SimpleNamespace(b=3), c=4)
MADE = [
    (operator.itemgetter, twins.get_items, (3,), {}, NUMBERS),
    (operator.itemgetter, twins.get_items, (2, 0), {}, NUMBERS),
    (operator.attrgetter, twins.get_attributes, ("a.b",), {}, NESTED),
    (operator.attrgetter, twins.get_attributes, ("a.b", "c"), {}, NESTED),
    (operator.methodcaller, twins.call_a_method, ("upper",), {}, "abc"),
    (operator.methodcaller, twins.call_a_method, ("split", "b"), {"maxsplit": 1}, "abcbd"),
]


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(CASES)))
def test_twin_gives_what_the_original_gives(original, args, kwargs):
    assert POLYFILLS[id(original)](*args, **kwargs) == original(*args, **kwargs)


def test_iconcat_changes_its_list():
    items = [1]
    assert twins.iconcat(items, [2]) is items and items == [1, 2]


@pytest.mark.parametrize("cls, twin, args, kwargs, obj", MADE)
def test_calls_of_callable_objects(cls, twin, args, kwargs, obj):
    assert twin(obj, *args, **kwargs) == cls(*args, **kwargs)(obj)


@pytest.mark.parametrize(
    "call",
    [
        lambda: twins.concat(1, 2),
        lambda: twins.iconcat(1, 2),
    ],
)
def test_what_a_twin_cannot_do_it_refuses(call):
    with pytest.raises(NotImplementedError):
        call()


def test_index_of_what_is_not_there_raises():
    with pytest.raises(ValueError):
        twins.index_of([1], 2)
