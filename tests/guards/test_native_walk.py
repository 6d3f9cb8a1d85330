"""Tests of minidynamo/guards/native_walk.py: machine code accepts only if the text accepts."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import gc
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import minidynamo
from minidynamo.codegen.runtime import library
from minidynamo.errors import Diagnostic, ToolchainMissing
from minidynamo.frontend.compile import compiled_record
from minidynamo.guards import native_walk as native
from minidynamo.guards.check import ordered, write_condition
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.native_walk import Op
from minidynamo.guards.source import CellContents, Constant, InstanceAttr, Item, Local, global_source
from minidynamo.guards.walk import Walk, plan_walk
from tests.guards.module_guards import Net, guards_of, parameter_sources

pytestmark = pytest.mark.cpp
K = GuardKind
UNSURE = object()


class Block(torch.nn.Linear):
    """A custom class: guards refer to the class weakly."""


class Table(dict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("user code ran")


class Row(list[Any]):
    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("user code ran")


class Key(str):
    pass


def act() -> None: ...


CELL = types.CellType(3)
SETTINGS: dict[str, Any] = {"act": act, "rate": 2}


def _net() -> Net:
    net = Net()
    net.layers[1] = Block(4, 4)
    net.act = act  # type: ignore[assignment]
    net.texts = {"k": "v"}  # type: ignore[assignment]
    return net


def _walk(net: Net) -> Walk:
    more = [
        Guard(InstanceAttr(Local("net"), "act"), K.IDENTITY, act),
        Guard(InstanceAttr(Local("net"), "texts"), K.TYPE, dict),
        Guard(Item(InstanceAttr(Local("net"), "texts"), "k"), K.EQUALS, "v"),
        Guard(global_source(SETTINGS, "act"), K.IDENTITY, act),
        Guard(global_source(SETTINGS, "rate"), K.EQUALS, 2),
        Guard(CellContents(Constant(CELL, "number")), K.EQUALS, 3),
    ]
    walk = plan_walk(ordered([*guards_of(net), *more]), parameter_sources(net)[3:], ("net",))
    assert walk is not None and {step.op for step in walk.steps} == set(Op)
    return walk


def _outcome(function: Callable[..., Any], net: object) -> Any:
    try:
        found = function(net)
    except Exception as error:
        return type(error)
    return [id(value) for value in found] if isinstance(found, tuple) else found


def _alone(walk: Walk) -> Callable[..., Any]:
    """Returns the machine code without the text."""
    made = dataclasses.replace(walk, function=lambda *_: UNSURE).native()
    assert made is not None
    return made


def _set(place: Callable[[Net], dict[Any, Any]], key: Any, value: Any) -> Callable[[Net], None]:
    return lambda net: place(net).__setitem__(key, value)


def _layer(net: Net) -> Any:
    return net.layers._modules["2"]


def _reorder(net: Net) -> None:
    modules = net.layers._modules
    modules["0"] = modules.pop("0")


def _other_class(net: Net) -> None:
    _layer(net).__class__ = Block


def _hook(net: Net) -> None:
    _layer(net).register_forward_pre_hook(lambda *_: None)


def _sized(cls: Callable[[Any], Any]) -> Callable[[Net], None]:
    return _set(vars, "sizes", cls([1, 2]))


# For each: the change of the module, and the answer of the machine code alone: True if all guards are still certain.
CHANGES: dict[str, tuple[Callable[[Net], object], bool]] = {
    "nothing": (lambda net: None, True),
    "an attribute nobody asked for": (lambda net: setattr(net, "other", 1), True),
    "equal number": (lambda net: setattr(net, "scale", 1 / 2), True),
    "equal text": (_set(lambda net: net.texts, "k", "".join(["v", ""])), True),  # type: ignore[arg-type,return-value]
    "another parameter": (lambda net: setattr(_layer(net), "bias", torch.nn.Parameter(torch.zeros(4))), True),
    "no parameter": (lambda net: setattr(_layer(net), "bias", None), True),
    "a registry with order": (
        _set(lambda net: vars(_layer(net)), "_forward_hooks", collections.OrderedDict()),
        True,
    ),
    "another registry": (lambda net: setattr(_layer(net), "_parameters", dict(_layer(net)._parameters)), True),
    "another class": (_other_class, False),
    "another class of a user's": (lambda net: setattr(net.layers[1], "__class__", torch.nn.Linear), False),
    "a method of the instance's own": (lambda net: setattr(_layer(net), "forward", abs), False),
    "a hook": (_hook, False),
    "a parameter is gone": (lambda net: _layer(net)._parameters.pop("bias"), False),
    "a registry is gone": (lambda net: vars(_layer(net)).pop("_parameters"), False),
    "a layer is gone": (lambda net: net.layers.pop(5), False),
    "another layer": (lambda net: net.layers.append(torch.nn.Linear(4, 4)), False),
    "another name of a layer": (lambda net: net.layers._modules.update(x=net.layers._modules.pop("5")), False),
    "an order of layers": (_reorder, False),
    "a name with a class": (lambda net: net.layers._modules.update({Key("5"): net.layers._modules.pop("5")}), False),
    "a table of another class": (lambda net: setattr(net.layers, "_modules", Table(net.layers._modules)), False),
    "a table with order": (
        lambda net: setattr(net.layers, "_modules", collections.OrderedDict(net.layers._modules)),
        False,
    ),
    "a table of parameters of another class": (
        lambda net: setattr(_layer(net), "_parameters", Table(_layer(net)._parameters)),
        False,
    ),
    "a dictionary of another class": (lambda net: setattr(_layer(net), "__dict__", Table(vars(_layer(net)))), False),
    "an unwanted key": (lambda net: net.layers._modules.update({"99": net.layers[0]}), False),
    "no object with attributes": (_set(lambda net: net.layers._modules, "3", 3), False),
    "another flag": (lambda net: net.eval(), False),
    "another number": (lambda net: setattr(net, "scale", 0.25), False),
    "a number of another class": (lambda net: setattr(net, "scale", torch.tensor(0.5)), False),
    "another function": (lambda net: setattr(net, "act", abs), False),
    "no function": (lambda net: setattr(net, "act", None), False),
    "a longer list": (lambda net: net.sizes.append(3), False),
    "a shorter list": (lambda net: net.sizes.pop(), False),
    "another element": (lambda net: net.sizes.__setitem__(1, 3), False),
    "a flag for a number": (lambda net: net.sizes.__setitem__(1, True), False),
    "a list of another class": (_sized(Row), False),
    "a tuple for a list": (_sized(tuple), False),
    "an empty tuple": (lambda net: setattr(net, "names", ()), False),
    "another text": (_set(lambda net: net.texts, "k", "w"), False),  # type: ignore[arg-type,return-value]
    "a text of another class": (_set(lambda net: net.texts, "k", Key("v")), False),  # type: ignore[arg-type,return-value]
}
ONLY_TEXT_IS_SURE = {"a name with a class"}


@pytest.mark.parametrize("what", CHANGES)
def test_machine_code_and_text_agree(what: str) -> None:
    change, sure = CHANGES[what]
    net = _net()
    walk = _walk(net)
    alone = _alone(walk)
    assert _outcome(alone, net) == _outcome(alone, net) == _outcome(walk.function, net)  # looked up, then by tags
    change(net)
    text = _outcome(walk.function, net)
    assert _outcome(alone, net) == (text if sure else UNSURE)
    holds = isinstance(text, list)
    assert holds is (sure or what in ONLY_TEXT_IS_SURE)
    made = walk.native()
    assert made is not None and _outcome(made, net) == text


def test_globals_are_looked_at_each_time() -> None:
    net = _net()
    alone = _alone(_walk(net))
    SETTINGS["rate"] = 3
    assert alone(net) is UNSURE
    SETTINGS["rate"] = 2
    assert alone(net) is not UNSURE


def test_a_dead_object_is_not_none() -> None:
    def gone() -> None: ...

    net = _net()
    net.act = gone  # type: ignore[assignment]
    more = Guard(InstanceAttr(Local("net"), "act"), K.IDENTITY, gone)
    walk = plan_walk(ordered([*guards_of(net), more]), (), ("net",))
    assert walk is not None
    alone = _alone(walk)
    assert alone(net) is not UNSURE
    net.act = None
    del gone, more
    gc.collect()
    assert alone(net) is UNSURE and walk.function(net) is None


def test_random_changes_never_make_machine_code_say_more_than_the_text() -> None:
    rng = random.Random(0)
    values: list[Any] = [None, True, 0, 2, 0.5, "a", (), [1, 2], {}, Table(), Row([1, 2]), torch.ones(1), act, Block]
    for _ in range(60):
        net = _net()
        walk = _walk(net)
        alone = _alone(walk)
        assert alone(net) is not UNSURE
        owners = [vars(module) for module in net.modules()]
        tables = [*owners, *(table for owner in owners for table in owner.values() if type(table) is dict and table)]
        for _ in range(rng.randint(1, 3)):
            table = rng.choice(tables)
            key = rng.choice([*table, "forward"])
            if rng.random() < 0.2:
                table.pop(key, None)
            else:
                table[key] = rng.choice(values)
            assert _outcome(alone, net) in (UNSURE, _outcome(walk.function, net))


@pytest.mark.parametrize("remembers", [True, False])
def test_attributes_that_change_and_change_back(remembers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes without a new tag are found by the last seen value, or else by a lookup."""
    if not remembers:
        monkeypatch.setattr(native, "values_can_be_read", lambda: False)
    rng = random.Random(1)
    for _ in range(8):
        net = _net()
        walk = _walk(net)
        alone = _alone(walk)
        first = {owner: dict(vars(owner)) for owner in net.modules()}
        for _ in range(40):
            owner = rng.choice(list(first))
            name = rng.choice([*first[owner], "forward"])
            if name in first[owner] and rng.random() < 0.6:
                object.__setattr__(owner, name, first[owner][name])
            elif rng.random() < 0.3:
                vars(owner).pop(name, None)
            else:
                vars(owner)[name] = rng.choice([None, True, 0.5, [1, 2], {}, act])
            assert _outcome(alone, net) in (UNSURE, _outcome(walk.function, net))
        for owner, attributes in first.items():
            vars(owner).pop("forward", None)
            vars(owner).update(attributes)
        assert alone(net) is not UNSURE


def test_what_was_not_looked_at_last_time_is_not_taken_for_seen() -> None:
    net = _net()
    alone = _alone(_walk(net))
    alone(net)
    net.act = abs  # type: ignore[assignment]
    net.sizes.append(3)  # here the walk stops
    assert alone(net) is UNSURE
    net.sizes.pop()
    assert alone(net) is UNSURE
    net.act = act  # type: ignore[assignment]
    assert alone(net) is not UNSURE


class Attributes:
    pass


def _attribute_changes(owner: Any) -> Iterator[None]:
    table = vars(owner)
    for value in range(100):  # long enough for the interpreter to specialize
        owner.a = value
        yield
    for value in range(100):
        owner.b = value
        yield
        del owner.b
        yield
    for set_attribute in (setattr, object.__setattr__):
        set_attribute(owner, "a", object())
        yield
        set_attribute(owner, "c", object())
        yield
        delattr(owner, "c")
        yield
    owner.__dict__.update(a=5)
    yield
    exec("a = 6", {}, table)
    yield


def _dict_changes(table: dict[Any, Any]) -> Iterator[None]:
    for value in range(100):
        table["a"] = value
        yield
    changes: list[Callable[[], object]] = [
        lambda: table.update(a=-1),
        lambda: table.__init__(a=-2),  # type: ignore[misc]
        lambda: table.__ior__({"a": -3}),
        lambda: table.setdefault("b", 1),
        lambda: table.pop("b"),
        lambda: table.__setitem__(5, 1),
        table.popitem,
        lambda: table.__delitem__("a"),
        lambda: table.update({"a": 1, "b": 2}),
        table.clear,
        lambda: dict.__setitem__(table, "a", 1),
        lambda: dict.clear(table),
        lambda: table.update(dict.fromkeys(map(str, range(100)))),
    ]
    for change in changes:
        change()
        yield


def _tables(attributes: int) -> Iterator[tuple[str, dict[Any, Any], Iterator[None]]]:
    yield "dict", (table := {"a": 0}), _dict_changes(table)
    ordered_table = collections.OrderedDict(a=0)
    yield "OrderedDict", ordered_table, _dict_changes(ordered_table)
    for early in (True, False):
        owner = Attributes()
        table = vars(owner) if early else {}
        for k in range(attributes):
            setattr(owner, f"k{k}", k)
        yield "attributes", vars(owner), _attribute_changes(owner)
        yield "attributes as a dict", vars(owner), _dict_changes(vars(owner))


@pytest.mark.parametrize("attributes", [1, 20, 60])
def test_each_change_of_a_dict_is_told_by_its_tag(attributes: int) -> None:
    """Checks Python's guarantees for a walk by tags; without these guarantees, the walk looks attributes up."""
    trusted = native.trusted_tags()
    seen: set[int] = set()
    for kind, table, changes in _tables(attributes):
        for _ in changes:
            has_values = ctypes.c_void_p.from_address(id(table) + 40).value is not None
            tag = native._tag(table)
            if trusted is native.Tags.ALL or (trusted is native.Tags.WITHOUT_VALUES and not has_values):
                assert tag not in seen, kind
            seen.add(tag)


def test_tags_are_trusted_as_far_as_this_python_goes() -> None:
    expected = {(3, 11): native.Tags.ALL, (3, 12): native.Tags.ALL, (3, 13): native.Tags.WITHOUT_VALUES}
    assert native.trusted_tags() is expected[sys.version_info[:2]]


def test_attributes_without_tags_can_be_remembered() -> None:
    assert native.values_can_be_read() or native.trusted_tags() is native.Tags.ALL


def test_counts_of_references_stay_as_they_were() -> None:
    net = _net()
    made = _walk(net).native()
    assert made is not None
    watched = [net, vars(net), net.layers, net.layers[2], *net.parameters(), SETTINGS, _layer(net)._forward_hooks]

    def counts() -> list[int]:
        return [sys.getrefcount(value) for value in watched]

    before = counts()
    for _ in range(50):
        made(net)
    assert counts() == before
    net.layers[2].register_forward_hook(act)
    before = counts()
    for _ in range(50):
        assert made(net) is None
    assert counts() == before


def test_values_given_die_with_the_result() -> None:
    net = _net()
    made = _walk(net).native()
    assert made is not None
    found = made(net)
    alive = [weakref.ref(net), weakref.ref(found[0])]
    gc.disable()
    try:
        del net
        assert alive[0]() is None and alive[1]() is not None
        del found
        assert alive[1]() is None
    finally:
        gc.enable()


def test_a_collector_may_run_in_the_middle() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        net = _net()
        made = _walk(net).native()
        assert made is not None
        for _ in range(20):
            fresh = _net()
            assert len(made(fresh)) == 12
    finally:
        gc.set_threshold(*thresholds)


def test_several_threads_walk_at_once() -> None:
    net = _net()
    made = _walk(net).native()
    assert made is not None
    results: list[int] = []

    def run() -> None:
        for k in range(200):
            net.layers[3].bias = torch.nn.Parameter(torch.full((4,), float(k)))
            results.append(len(made(net)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [12] * 800


# The choice of a check by the guards


@pytest.fixture
def no_compiler() -> Iterator[list[str]]:
    asked = []

    def build(source: str, entries: object) -> Any:
        asked.append(source)
        raise ToolchainMissing(Diagnostic("MD501", "none"))

    native.build_with(build)
    yield asked
    native.build_with(library.load)


def test_without_a_compiler_the_text_stays_and_nobody_asks_twice(no_compiler: list[str]) -> None:
    net = _net()
    conditions = [write_condition(guards_of(net), ("net",)) for _ in range(2)]
    for condition in conditions:
        assert condition.walk is not None
        condition.walk.make_native()
        assert condition.walk.namespace[condition.walk.name] is condition.walk.walk.function
        assert eval(condition.text, dict(condition.namespace), {"net": net})
    assert len(no_compiler) == 1


def test_a_function_that_is_called_often_gets_machine_code_with_one_meaning() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(12)))
    compiled = minidynamo.compile(net, backend="eager")
    x = torch.ones(2, 3)
    with torch.no_grad():
        for _ in range(20):
            expected = compiled(x)
        (entry,) = compiled_record(compiled).root().entries  # type: ignore[union-attr]
        slot = entry.condition.walk
        assert slot.namespace[slot.name] is not slot.walk.function
        with minidynamo.testing.no_recompile():
            assert torch.equal(compiled(x), expected)
        net[3].weight = torch.nn.Parameter(net[3].weight * 2)
        with minidynamo.testing.no_recompile():
            assert not torch.equal(compiled(x), expected)
        net[5].register_forward_hook(lambda module, args, out: out * 0)
        made = compiled(x)
        with minidynamo.config.patch(disable=True):
            assert torch.equal(made, net(x))
        assert "_forward_hooks" in minidynamo.why(compiled)


def test_constants_are_starts_of_their_own() -> None:
    table = {str(k): k for k in range(40)}
    guards = [Guard(Item(Constant(table, "table"), key), K.EQUALS, value) for key, value in table.items()]
    walk = plan_walk(guards, (), ())
    assert walk is not None
    assert _alone(walk)() == ()
    table["7"] = 8
    assert _alone(walk)() is UNSURE
