"""Names of sources that the next process finds again."""

from __future__ import annotations

import enum

from minidynamo.guards.source import (
    Attr,
    Called,
    Computed,
    Constant,
    InstanceAttr,
    Item,
    Local,
    Size,
    TensorFact,
    global_source,
    source_key,
)
from minidynamo.guards.stable_names import stable_name

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
