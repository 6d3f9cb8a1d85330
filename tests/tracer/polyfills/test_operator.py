import operator
from types import SimpleNamespace

import pytest

from minidynamo.tracer.polyfills import functools as twins
from tests.tracer.polyfills.agreement import NUMBERS

NESTED = SimpleNamespace(a=SimpleNamespace(b=3), c=4)
MADE = [
    (operator.itemgetter, twins.get_items, (3,), {}, NUMBERS),
    (operator.itemgetter, twins.get_items, (2, 0), {}, NUMBERS),
    (operator.attrgetter, twins.get_attributes, ("a.b",), {}, NESTED),
    (operator.attrgetter, twins.get_attributes, ("a.b", "c"), {}, NESTED),
    (operator.methodcaller, twins.call_a_method, ("upper",), {}, "abc"),
    (operator.methodcaller, twins.call_a_method, ("split", "b"), {"maxsplit": 1}, "abcbd"),
]


@pytest.mark.parametrize("cls, twin, args, kwargs, obj", MADE)
def test_calls_of_callable_objects(cls, twin, args, kwargs, obj):
    assert twin(obj, *args, **kwargs) == cls(*args, **kwargs)(obj)
