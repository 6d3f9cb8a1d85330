from collections import OrderedDict

from minidynamo.tracer.polyfills import dicts as twins


class Ordered(OrderedDict):
    pass


def test_twins_of_subclasses_leave_and_return_what_the_originals_do():
    for method, twin, args in (
        (OrderedDict.update, twins.dict_update, ({3: 4},)),
        (OrderedDict.update, twins.dict_update, ([(1, 5)],)),
        (OrderedDict.update, twins.dict_update, ()),
        (OrderedDict.setdefault, twins.ordered_setdefault, (1, 3)),
        (OrderedDict.setdefault, twins.ordered_setdefault, (2, 3)),
        (OrderedDict.setdefault, twins.ordered_setdefault, (2,)),
        (OrderedDict.__ior__, twins.ordered_ior, ({3: 4},)),
        (OrderedDict.copy, twins.ordered_copy, ()),
    ):
        for_original, for_twin = Ordered({1: 2}), Ordered({1: 2})
        expected, actual = method(for_original, *args), twin(for_twin, *args)
        assert (actual, type(actual)) == (expected, type(expected))
        assert for_twin == for_original


def test_class_methods():
    for cls, twin in ((dict, twins.dict_fromkeys), (OrderedDict, twins.ordered_dict_fromkeys)):
        for args in (("abca",), ("ab", 1), ([],)):
            assert twin(cls, *args) == cls.fromkeys(*args)
            assert type(twin(cls, *args)) is cls


def test_equality():
    assert twins.dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
    assert not twins.dict_equal({1: 2}, {1: 3})
    assert not twins.ordered_dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
