"""Tests of minidynamo/guards/reader.py."""

import collections

import torch

from minidynamo.core.names import Namespace
from minidynamo.guards.guard import Guard, GuardKind, reader_of
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Computed, Constant, InstanceAttr, Item, Local, Source, TypeOf

MODULES = InstanceAttr(Local("m"), "_modules")
FIRST = InstanceAttr(Item(MODULES, "a"), "_parameters")


class Net:
    pass


def test_what_is_read_twice_becomes_a_temporary_once() -> None:
    reader = Reader(Namespace(["m"]))
    sources = [Item(FIRST, "w"), Item(FIRST, "b"), InstanceAttr(Item(MODULES, "a"), "training"), Local("m")]
    assert reader.finished([f"{reader.read(source)} == 1" for source in sources]) == [
        "(t_1 := (t := m.__dict__['_modules']['a'].__dict__)['_parameters'])['w'] == 1",
        "t_1['b'] == 1",
        "t['training'] == 1",
        "m == 1",
    ]
    assert reader.temporaries() == ["t", "t_1"]


def test_a_value_read_twice_itself_is_shared_but_its_way_is_not() -> None:
    reader = Reader(Namespace(["m"]))
    text = f"{reader.read(MODULES)} is {reader.read(MODULES)}"
    assert reader.finished([text]) == ["(t := m.__dict__['_modules']) is t"]


def test_what_is_not_written_in_the_end_is_not_read() -> None:
    reader = Reader(Namespace(["m"]))
    reader.read(MODULES)
    assert reader.finished([reader.read(MODULES)]) == ["m.__dict__['_modules']"]
    assert reader.temporaries() == []


def test_texts_with_any_character_are_no_marks() -> None:
    reader = Reader(Namespace(["m"]))
    odd = Item(Item(Local("m"), "\0" + "0\0"), "\\0")
    (text,) = reader.finished([reader.read(odd)])
    assert eval(text, {"m": {"\0" + "0\0": {"\\0": 5}}}) == 5


def test_named_values_are_bound_once_and_found_later() -> None:
    reader = Reader(Namespace(["m"]))
    assert reader.name(MODULES, "modules") == "modules"
    assert reader.name(MODULES, "other") == "modules"
    assert reader.name(Local("m"), "m") == "m"
    later = reader.read(Item(MODULES, "a"))
    reader.count([reader.read(MODULES), later])
    assert reader.assignment(Local("m")) == []
    assert reader.assignment(MODULES) == ["modules = m.__dict__['_modules']"]
    assert reader.assignment(MODULES) == []
    assert reader.write(later) == "modules['a']"


def test_a_name_is_bound_where_the_value_is_read_first() -> None:
    reader = Reader(Namespace(["m"]))
    first = Item(MODULES, "a")
    for source in (first, MODULES):
        reader.name(source, source.display())
    reader.count(map(reader.read, (first, MODULES)))
    assert reader.assignment(first) == ["m_a = (m__modules := m.__dict__['_modules'])['a']"]
    assert reader.assignment(MODULES) == []


def test_a_reader_for_another_condition_spells_alike_and_binds_for_itself() -> None:
    reader = reader_of([Guard(Local("m"), GuardKind.TYPE, Net)], Namespace(["m"]))
    twice = [reader.read(Item(MODULES, name)) for name in "ab"]
    assert reader.finished(twice) == ["(t := m.__dict__['_modules'])['a']", "t['b']"]
    other = reader.fork()
    assert other.class_of(Local("m")) is Net
    assert other.read(Item(MODULES, "b")) == twice[1]
    assert other.finished(twice[1:]) == ["m.__dict__['_modules']['b']"]


def test_classes_follow_from_type_tensor_and_identity_guards() -> None:
    guards = [
        Guard(Local("m"), GuardKind.TYPE, Net),
        Guard(Local("cls"), GuardKind.IDENTITY, Net),
    ]
    reader = reader_of(guards, Namespace())
    assert reader.class_of(Local("m")) is Net
    assert reader.class_at(TypeOf(Local("m"))) is Net
    assert reader.class_at(Local("cls")) is Net
    assert reader.class_of(Local("cls")) is type
    assert reader.class_at(Constant(Net, "Net")) is Net
    assert reader.class_of(Constant({}, "G")) is dict
    assert reader.class_of(Local("other")) is None
    assert reader.class_at(TypeOf(Local("other"))) is None


def test_library_objects_are_named_and_others_referred_to_weakly() -> None:
    reader = Reader(Namespace())
    assert reader.reference(torch.nn.Linear) == ("Linear", False)
    assert reader.reference(collections.OrderedDict) == ("OrderedDict", False)
    assert reader.reference(list) == ("list", False)
    assert reader.reference(torch.nn) == ("torch_nn", False)
    assert reader.reference(Net) == ("Net_ref", True)
    assert reader.reference(5) == ("int_1", False)


def nested(depth: int) -> Source:
    number: Source = Local("n")
    for _ in range(depth):
        number = Computed("({0} + 3) * {0} % 97", (number,))
    return number


def test_deep_values_are_bound_before_the_text_that_needs_them() -> None:
    reader = Reader(Namespace(["n"]))
    (condition,) = reader.finished([f"({reader.read(nested(100))}, {reader.read(nested(60))})"])
    expected = [2]
    for _ in range(100):
        expected.append((expected[-1] + 3) * expected[-1] % 97)
    assert eval(condition, {}, {"n": 2}) == (expected[100], expected[60])


def test_operands_that_a_condition_may_skip_are_bound_before_it() -> None:
    reader = Reader(Namespace(["n"]))
    total = Computed("{0} + 1", (Local("n"),))
    either = Computed("{0} > 5 or {1} > 5", (Local("n"), total))
    texts = reader.finished([reader.read(either), f"{reader.read(total)} > 7"])
    assert eval(" and ".join(texts), {}, {"n": 7}) is True
    assert eval(" and ".join(texts), {}, {"n": 6}) is False
