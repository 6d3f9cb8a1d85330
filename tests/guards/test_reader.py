"""Tests of minidynamo/guards/reader.py."""

import collections

import torch

from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Item, Local, TypeOf
from minidynamo.names import Namespace

MODULES = InstanceAttr(Local("m"), "_modules")
FIRST = InstanceAttr(Item(MODULES, "a"), "_parameters")


class Net:
    pass


def test_what_is_read_twice_becomes_a_temporary_once() -> None:
    counting = Reader((), Namespace(["m"]))
    sources = [Item(FIRST, "w"), Item(FIRST, "b"), InstanceAttr(Item(MODULES, "a"), "training"), Local("m")]
    for source in sources:
        counting.read(source)
    shared = counting.reads_again()
    assert shared == {FIRST, Attr(Item(MODULES, "a"), "__dict__")}
    reader = Reader((), Namespace(["m"]), shared)
    assert [reader.read(source) for source in sources] == [
        "(t_1 := (t := m.__dict__['_modules']['a'].__dict__)['_parameters'])['w']",
        "t_1['b']",
        "t['training']",
        "m",
    ]
    assert reader.temporaries() == ["t", "t_1"]


def test_a_value_read_twice_itself_is_shared_but_its_way_is_not() -> None:
    counting = Reader((), Namespace(["m"]))
    counting.read(MODULES)
    counting.read(MODULES)
    assert counting.reads_again() == {MODULES}


def test_named_values_are_bound_once_and_found_later() -> None:
    reader = Reader((), Namespace(["m"]), frozenset())
    assert reader.name(MODULES, "modules") == ("modules", "m.__dict__['_modules']")
    assert reader.name(MODULES, "modules") == ("modules", None)
    assert reader.read(Item(MODULES, "a")) == "modules['a']"
    assert reader.name(Local("m"), "m") == ("m", None)


def test_classes_follow_from_type_tensor_and_identity_guards() -> None:
    guards = [
        Guard(Local("m"), GuardKind.TYPE, Net),
        Guard(Local("cls"), GuardKind.IDENTITY, Net),
    ]
    reader = Reader(guards, Namespace())
    assert reader.class_of(Local("m")) is Net
    assert reader.class_at(TypeOf(Local("m"))) is Net
    assert reader.class_at(Local("cls")) is Net
    assert reader.class_of(Local("cls")) is type
    assert reader.class_at(Constant(Net, "Net")) is Net
    assert reader.class_of(Constant({}, "G")) is dict
    assert reader.class_of(Local("other")) is None
    assert reader.class_at(TypeOf(Local("other"))) is None


def test_library_objects_are_named_and_others_referred_to_weakly() -> None:
    reader = Reader((), Namespace())
    assert reader.reference(torch.nn.Linear) == ("Linear", False)
    assert reader.reference(collections.OrderedDict) == ("OrderedDict", False)
    assert reader.reference(list) == ("list", False)
    assert reader.reference(torch.nn) == ("torch_nn", False)
    assert reader.reference(Net) == ("Net_ref", True)
    assert reader.reference(5) == ("int_1", False)
