from collections import OrderedDict

from minidynamo.tracer.polyfills import dicts as twins
from tests.tracer.polyfills.agreement import same_changes

CHANGING_CASES = {
    dict.update: [({1: 2}, {3: 4}), ({1: 2}, [(1, 5)], {"a": 3}), ({},)],
    OrderedDict.setdefault: [(OrderedDict({1: 2}), 1, 3), (OrderedDict({1: 2}), 2, 3), (OrderedDict(), 1)],
    dict.__ior__: [({1: 2}, {3: 4})],
}


test_changing_twin_leaves_what_the_original_leaves = same_changes(CHANGING_CASES)


def test_class_methods():
    for cls, twin in ((dict, twins.dict_fromkeys), (OrderedDict, twins.ordered_dict_fromkeys)):
        for args in (("abca",), ("ab", 1), ([],)):
            assert twin(cls, *args) == cls.fromkeys(*args)
            assert type(twin(cls, *args)) is cls


def test_equality():
    assert twins.dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
    assert not twins.dict_equal({1: 2}, {1: 3})
    assert not twins.ordered_dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
