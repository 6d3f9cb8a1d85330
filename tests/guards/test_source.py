"""Tests of minidynamo/guards/source.py."""

import collections
import enum
import sys
import weakref

import pytest

from minidynamo.core.names import Namespace
from minidynamo.guards.source import (
    Attr,
    Called,
    CellContents,
    Computed,
    Constant,
    Derived,
    Drawn,
    InstanceAttr,
    Item,
    Local,
    NewObject,
    Referent,
    Result,
    Size,
    Source,
    SubclassItem,
    TensorFact,
    TypeOf,
    global_source,
    is_drawn,
    key_expression,
    source_key,
    stable_name,
)

G = {"factor": 3}


class Point:
    def __init__(self) -> None:
        self.x = [1, (2, {"k": 5})]

    def __getattr__(self, name: str) -> object:
        raise AssertionError("user code ran")


class Shouting(list):  # type: ignore[type-arg]
    def __getitem__(self, index: object) -> object:
        raise AssertionError("user code ran")


def _cell(value: object) -> object:
    return (lambda: value).__closure__[0]  # type: ignore[index]


CASES = [
    (Local("p"), "p", "p", "p"),
    (InstanceAttr(Local("p"), "x"), "p.__dict__['x']", "p.x", [1, (2, {"k": 5})]),
    (Item(InstanceAttr(Local("p"), "x"), 1), "p.__dict__['x'][1]", "p.x[1]", (2, {"k": 5})),
    (Item(Item(Item(InstanceAttr(Local("p"), "x"), 1), 1), "k"), "p.__dict__['x'][1][1]['k']", "p.x[1][1]['k']", 5),
    (TypeOf(Local("p")), "type(p)", "type(p)", Point),
    (Attr(TypeOf(Local("p")), "__mro__"), "type(p).__mro__", "type(p).__mro__", Point.__mro__),
    (SubclassItem(Local("xs"), 1, list), "list.__getitem__(xs, 1)", "xs[1]", 8),
    (CellContents(Constant(_cell(4), "n")), "n.cell_contents", "n", 4),
    (Result(Constant(sys.getrecursionlimit, "limit")), "limit()", "limit()", sys.getrecursionlimit()),
    (NewObject(Constant(dict, "dict"), "table"), "dict()", "table", {}),
    (global_source(G, "factor"), "G['factor']", "factor", 3),
]


@pytest.mark.parametrize(("source", "text", "display", "value"), CASES, ids=[case[1] for case in CASES])
def test_expression_reads_the_value_and_display_is_the_users_spelling(
    source: Source, text: str, display: str, value: object
) -> None:
    names = Namespace(["p", "xs"])
    point = Point()
    assert source.expression(names) == text
    assert source.display() == display
    found = eval(text, dict(names.values), {"p": point, "xs": Shouting([7, 8])})
    assert found == (point if value == "p" else value)


def test_module_registries_are_displayed_as_attributes_and_elements() -> None:
    layers = Item(InstanceAttr(Local("self"), "_modules"), "layers")
    assert layers.display() == "self.layers"
    assert Item(InstanceAttr(Item(InstanceAttr(layers, "_modules"), "0"), "_parameters"), "weight").display() == (
        "self.layers[0].weight"
    )


def test_equality_is_structural_and_of_constants_by_identity() -> None:
    assert Item(Local("x"), 0) == Item(Local("x"), 0)
    assert hash(Item(Local("x"), 0)) == hash(Item(Local("x"), 0))
    assert Item(Local("x"), 0) != Item(Local("x"), 1)
    assert Item(Local("x"), "0") != InstanceAttr(Local("x"), "0")
    first, second = [1], [1]
    assert Constant(first, "a") == Constant(first, "b")
    assert Constant(first, "a") != Constant(second, "a")


def test_bases_run_from_the_nearest_to_the_root() -> None:
    source = Item(InstanceAttr(Local("x"), "a"), 0)
    assert list(source.bases()) == [InstanceAttr(Local("x"), "a"), Local("x")]
    assert source.root() == Local("x")
    assert source.depth() == 2
    assert Local("x").root() == Local("x")
    assert isinstance(source, Derived)


def test_what_hangs_on_a_drawn_number_is_known() -> None:
    drawn = Drawn("drawn_0")
    assert drawn.expression(Namespace()) == drawn.display() == "drawn_0"
    assert is_drawn(drawn) and is_drawn(Computed("{0} * {1}", (Local("x"), Computed("-{0}", (drawn,)))))
    assert not is_drawn(Computed("{0} * {1}", (Local("x"), Local("y"))))


def test_type_stays_readable_when_a_parameter_is_called_type() -> None:
    names = Namespace(["type", "x"])
    text = TypeOf(Local("x")).expression(names)
    assert eval(text, dict(names.values), {"x": 3, "type": "shadow"}) is int


def test_key_expressions_evaluate_to_equal_keys() -> None:
    names = Namespace()
    marker = object()
    for key in (1, "a", None, True, b"x", (1, ("b", 2)), (), collections.deque, marker):
        assert eval(key_expression(key, names), dict(names.values)) == key  # type: ignore[arg-type]


def test_what_a_cache_holds() -> None:
    names = Namespace()
    place = Called(Constant(divmod, "divmod"), (Local("x"), Constant(2, "2")))
    named = Called(Constant(int, "int"), (Constant("ff", "'ff'"), Constant(16, "16")), ("base",))
    assert eval(place.expression(names), {**names.values, "x": 7}) == (3, 1)
    assert eval(named.expression(names), names.values) == 255
    assert eval(place.expression(names), {**names.values, "x": "7"}) is None  # it raises
    assert place.display() == "divmod(x, 2)" and set(place.roots()) > {Local("x")}
    assert Local("x") in set(place.bases())


class Part:
    pass


def test_what_is_compared_by_identity_is_not_kept_alive_as_a_key():
    part = Part()
    known, names = source_key(("a", part)), Namespace()
    assert known == ("a", Referent(part, "Part")) and known[1] == Constant(part, "other")
    assert {known[1]: 1}[Referent(part, "again")] == 1 and known[1] != Referent(Part(), "Part")
    text = key_expression(known, names)
    assert eval(text, dict(names.values)) == ("a", part) and known[1].value is part
    reference = weakref.ref(part)
    del part
    assert reference() is None and eval(text, dict(names.values)) == ("a", None)
    assert known[1].expression(names) == "None" and known[1] != Referent(Part(), "Part")
    for key in (1, "a", Part, len, None, source_key):
        assert source_key(key) is key


X, Y = Local("x"), Local("y")


class Kind(enum.Enum):
    ONE = 1


class Unnamed:
    pass


def test_names_are_the_same_in_each_process() -> None:
    names = {"a": 1}
    assert stable_name(Item(X, "k")) == "L['x']['k']"
    assert stable_name(Size(InstanceAttr(Local("self"), "weight"), 1)) == "L['self'].weight.size()[1]"
    assert stable_name(global_source(names, "a")) == "G['a']"
    assert stable_name(Attr(Constant(max, "max"), "__name__")) == "max.__name__"
    assert stable_name(Item(X, (max, Kind.ONE))) == "L['x'][(builtins.max, Kind.ONE)]"
    one, other = Unnamed(), Unnamed()
    names = [stable_name(Item(X, source_key(key))) for key in (one, other, one)]
    assert names[0] == names[2] != names[1]
    assert stable_name(Item(X, source_key(Kind))) == f"L['x'][{__name__}.Kind]"
    assert stable_name(Computed("{0} + {1}", (X, Y))) == "L['x'] + L['y']"
    cached = global_source(names, "a")
    assert stable_name(Called(cached, (Constant(3, "3"), X), ("k",))) == "Called(G['a'], [3, L['x']], ['k'])"
    assert stable_name(TensorFact(X, "storage_offset()")) == "TensorFact(L['x'], 'storage_offset()')"
