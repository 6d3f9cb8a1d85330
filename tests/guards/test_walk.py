"""Tests of minidynamo/guards/walk.py: the guards that a walk takes, its result and its refusals. test_native_walk.py
compares both forms."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from minidynamo.guards.check import ordered
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.native_walk import Op
from minidynamo.guards.source import Attr, InstanceAttr, Item, Local, Size, Source, SubclassItem
from minidynamo.guards.tensors import facts_of
from minidynamo.guards.walk import MIN_GUARDS, Walk, plan_walk
from tests.guards.module_guards import Net, guards_of, parameter_sources

K = GuardKind


def _walk(net: Net, *others: Guard, wanted: tuple[Source, ...] = ()) -> Walk:
    walk = plan_walk(ordered([*guards_of(net), *others]), wanted, ("net", "x"))
    assert walk is not None
    return walk


def test_a_walk_gives_the_tensors_that_are_guarded() -> None:
    net = Net()
    walk = _walk(net)
    assert walk.arguments == ("net",)
    found = walk.function(net)
    assert len(found) == len([*net.parameters()])
    assert all(value is parameter for value, parameter in zip(found, net.parameters()))
    net.layers[3].register_forward_hook(lambda *_: None)
    assert walk.function(net) is None


def test_what_is_wanted_comes_first_and_in_its_order() -> None:
    net = Net()
    sources = parameter_sources(net)
    wanted = (sources[5], Local("x"), sources[2])
    walk = _walk(net, wanted=wanted)
    assert walk.found.sources[:2] == (sources[5], sources[2])
    assert walk.function(net)[0] is net.layers[2].bias


def test_values_are_visited_with_all_that_is_below_them() -> None:
    net = Net()
    starts = [step.op for step in _walk(net).steps].count(Op.START)
    assert starts == 1
    kept = [step.number for step in _walk(net).steps if step.op is Op.KEEP]
    assert kept == sorted(kept)


def test_few_guards_stay_where_they_are() -> None:
    layer = InstanceAttr(Local("net"), "layer")
    guards = [Guard(Item(layer, str(k)), K.EQUALS, k) for k in range(MIN_GUARDS - 1)]
    assert plan_walk(guards, (), ("net",)) is None
    assert plan_walk([Guard(Local("net"), K.TYPE, Net), *guards, guards[0]], (), ("net",)) is not None


def test_what_a_walk_cannot_spell_is_left_to_the_text() -> None:
    net = Net()
    layers = InstanceAttr(InstanceAttr(Local("net"), "_modules"), "layers")
    weight = parameter_sources(net)[0]
    left = [
        Guard(Local("net"), K.LENGTH, 3),  # an argument is checked first
        Guard(SubclassItem(layers, 0, list), K.IDENTITY, None),
        Guard(InstanceAttr(Local("net"), "scale"), K.EQUALS, 0.0),  # a zero has a sign
        Guard(Attr(weight, "grad"), K.IDENTITY, None),  # not before the tensor has been checked
        Guard(InstanceAttr(weight, "mark"), K.IDENTITY, None),
        Guard(Size(weight, 0), K.EQUALS, 4),
        Guard(weight, K.TENSOR, facts_of(net.layers[0].weight)),
    ]
    rest = _walk(net, *left).rest
    assert all(guard in rest for guard in left)


def test_an_instance_with_a_dictionary_of_its_own_making_is_left_to_the_text() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("user code ran")

    odd = InstanceAttr(Local("net"), "odd")
    guard = Guard(InstanceAttr(odd, "n"), K.EQUALS, 1)
    assert guard in _walk(Net(), Guard(odd, K.TYPE, Odd), guard).rest
    assert Guard(InstanceAttr(InstanceAttr(Local("net"), "unknown"), "n"), K.EQUALS, 1) in (
        _walk(Net(), Guard(InstanceAttr(InstanceAttr(Local("net"), "unknown"), "n"), K.EQUALS, 1)).rest
    )


def test_a_walk_keeps_nothing_alive_and_is_in_no_cycle() -> None:
    class Own(torch.nn.Linear):
        pass

    net = Net()
    net.layers[0] = Own(4, 4)
    walk = _walk(net)
    assert walk.function(net)
    alive = [weakref.ref(net), weakref.ref(walk.function)]
    gc.disable()
    try:
        del net, walk
        assert [reference() for reference in alive] == [None, None]
    finally:
        gc.enable()
