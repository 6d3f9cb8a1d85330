import math
import sys
import types

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.errors import MinidynamoError
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Box:
    shared = 3

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    @property
    def hidden(self):
        return "property"


class Slotted(Box):
    __slots__ = ("slot",)


class Shared:
    """Objects that share one dictionary, as the state of a library often does."""

    shared = None  # a dict, which `shared_objects` makes

    def __init__(self):
        self.__dict__ = self.shared
        self.__dict__.setdefault("count", 0)


class SharedToo(Shared):
    __slots__ = ()

    @property
    def twice(self):
        return self.count * 2

    @property
    def hidden(self):
        return "property"


class SharedWithSlot(Shared):
    __slots__ = ("slot",)


def shared_objects():
    Shared.shared = {"rate": 2.0}
    return vector(), Shared(), SharedToo(), SharedWithSlot()


def box(cls=Box, **attributes):
    return lambda: (vector(), cls(**attributes))


def with_its_dictionary():
    obj = Box(a=1)
    return vector(), obj, obj.__dict__


def with_another_dictionary():
    return vector(), Box(a=1), {"a": 1}


RATE, STEPS, SEEN = 2.0, 0, []
THIS = sys.modules[__name__]


def doubled(x):
    return x * 2


@programs()
def reading_globals(x):
    names = globals()
    found = names["doubled"](x) * names["RATE"], names.get("nothing", 3), "RATE" in names, "nothing" in names
    return *found, sorted(name for name in names if name.startswith("doub")), vars(THIS) is names is THIS.__dict__


@programs()
class Cases:
    @programs(box(a=1))
    def reading(x, obj):
        names = obj.__dict__
        return x * names["a"], "a" in names, "shared" in names, names.get("nothing", 7), len(names), list(names.items())

    @programs(box(a=1, b=2))
    def writing(x, obj):
        obj.__dict__["a"] = x
        obj.__dict__.update(c=x + 1, d=4)
        del obj.__dict__["b"]
        obj.e = 5
        made = obj.a + obj.c, obj.__dict__.pop("d")
        return *made, list(obj.__dict__), hasattr(obj, "b"), obj.__dict__.setdefault("f", 6)

    def on_a_new_object(x):
        obj = Box(a=x)
        obj.b = obj.__dict__["a"] + 1
        obj.__dict__["c"] = 3
        return obj, list(obj.__dict__), obj.c, dict(obj.__dict__)

    @programs(box(a=1), graphs=0)
    def order_of_the_names(x, obj):
        obj.b = x
        del obj.a
        obj.a = 2
        return list(obj.__dict__), next(reversed(obj.__dict__.values()))

    @programs(box(a=1), graphs=0)
    def behind_a_property(x, obj):
        obj.__dict__["hidden"] = x
        return obj.hidden, obj.__dict__["hidden"]

    def behind_a_property_of_a_new_object(x):
        obj = Box()
        obj.__dict__["hidden"] = x + 1
        return obj, obj.hidden

    @programs(box(a=1))
    def the_dictionary_itself(x, obj):
        names = obj.__dict__
        obj.b = x + 1
        return names is obj.__dict__, names

    def dictionary_of_a_new_object_returned(x):
        obj = Box(a=x + 1)
        return obj.__dict__, obj

    @programs(box(Slotted, a=1))
    def slots_are_elsewhere(x, obj):
        obj.slot = x
        return list(obj.__dict__), "slot" in vars(obj), obj.slot + 1

    @programs(box(a=1), box(a=1, b=2), graphs=2, recompiles=1)
    def another_number_of_names(x, obj):
        return x * len(obj.__dict__)

    @programs(box(a=1, b=2), box(a=1, b=3), graphs=1, recompiles=0)
    def what_is_not_read_is_not_guarded(x, obj):
        return x * obj.__dict__["a"]

    @programs(box(a=1), box(b=1), graphs=2, recompiles=1)
    def only_whether_it_is_there(x, obj):
        return x + 1 if "a" in vars(obj) else x - 1

    def of_a_class(x):
        names = Box.__dict__
        return x * names["shared"], "shared" in names, "nothing" in Slotted.__dict__, names.get("nothing", 4)

    @programs(with_another_dictionary, with_its_dictionary, graphs=2, recompiles=1)
    def object_and_its_dictionary_as_arguments(x, obj, names):
        names["a"] = 5
        return x * obj.a

    @programs(with_another_dictionary, with_its_dictionary, graphs=2, recompiles=1)
    def dictionary_read_behind_a_write_to_the_object(x, obj, names):
        obj.a = 5
        return x * names["a"]

    @programs(box(a=1), graphs=None, breaks=None)
    def dictionary_across_a_break(x, obj):
        names = obj.__dict__
        print("here")
        names["a"] = 4
        return x * obj.a

    @programs(shared_objects)
    def objects_that_share_a_dictionary(x, one, other, third):
        one.count += 1
        other.extra = x + 1
        del third.rate
        third.hidden = 3
        return other.twice, one.extra, hasattr(one, "rate"), other.hidden, one.hidden, one.__dict__ is third.__dict__

    @programs(shared_objects)
    def new_object_with_a_shared_dictionary(x, one, other, third):
        one.count += 1
        Shared().rate = x
        return Shared().count, third.rate * 2, one.__dict__ is Shared.shared

    @programs(shared_objects)
    def shared_dictionary_read_before_its_objects(x, one, other, third):
        type(one).shared["rate"] = x + 1
        other.count = 5
        return one.rate, list(Shared.shared), third.__dict__

    @programs(shared_objects, lambda: (vector(), Box(count=1), Box(count=2), Box(count=3)), graphs=2, recompiles=1)
    def objects_that_share_no_dictionary_any_more(x, one, other, third):
        one.count = 7
        return x + other.count + third.count

    @programs(shared_objects, graphs=None, breaks=None)
    def key_with_the_name_of_a_slot(x, one, other, third):
        third.slot = 1
        one.slot = 2
        other.slot = 3
        return x, third.slot, one.slot

    @programs(lambda: (vector(), [shared := Box(a=1), Box(a=1)], shared), graphs=None, breaks=None)
    def two_objects_with_one_dictionary(x, boxes, shared):
        boxes[1].__dict__ = shared.__dict__
        boxes[1].a = 7
        return x * shared.a

    def writing_globals(x):
        globals()["STEPS"] = 1
        globals().update(STEPS=STEPS + 1)
        globals()["NEW"] = x
        y = NEW * STEPS  # noqa: F821
        del globals()["NEW"]
        globals()["SEEN"][:] = [STEPS]
        return y, "NEW" in globals(), SEEN

    def names_of_libraries(x):
        return vars(torch)["sin"](x), F.__dict__["relu"](x), "sin" in vars(math), "nothing" in vars(math)


def test_globals_that_change(monkeypatch):
    def program(x):
        names = globals()
        return names["doubled"](x) * names["RATE"] + names.get("LATER", 0) + len([n for n in names if n == "LATER"])

    compiled, x = minidynamo.compile(program, backend="eager", fullgraph=True), torch.ones(1)
    changes = {"RATE": 3.0, "LATER": 1, "doubled": torch.neg}
    for name, value in changes.items():
        assert compiled(x) == program(x)
        monkeypatch.setitem(globals(), name, value)
    assert compiled(x) == program(x)
    monkeypatch.undo()
    assert compiled(x) == program(x)


@pytest.mark.parametrize("reads_first", [False, True])
def test_globals_beside_the_same_dict_that_is_passed(reads_first):
    def program(x, names):
        return x * globals()["RATE"] * names["RATE"] if reads_first else x * names["RATE"] * globals()["RATE"]

    assert minidynamo.compile(program, backend="eager")(torch.ones(1), globals()) == 4
    with pytest.raises(MinidynamoError):
        minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(1), globals())


def test_globals_that_belong_to_no_module():
    function = types.FunctionType(reading_globals.__code__, {**globals()})
    assert minidynamo.compile(function, backend="eager")(torch.ones(1))[0] == 4
    with pytest.raises(MinidynamoError):
        minidynamo.compile(function, backend="eager", fullgraph=True)(torch.ones(1))
