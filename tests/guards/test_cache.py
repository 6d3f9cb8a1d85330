"""Tests of minidynamo/guards/cache.py."""

import gc
from typing import Any

import torch

from minidynamo.guards.cache import Entry, in_order, make_entry
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Local, Source, TypeOf
from minidynamo.guards.state import current
from minidynamo.guards.tensors import facts_of

K = GuardKind


def _body(boxed: list[Any]) -> Any:
    return boxed


def _entry(value: object, number: int = 0) -> Entry:
    return make_entry([Guard(Local("x"), K.IDENTITY, value)], ("x",), _body, number=number, backend_key="eager")


def test_an_entry_holds_what_the_dispatcher_needs() -> None:
    entry = _entry(None)
    assert entry.condition.text == "x is None"
    assert entry.condition.function_source == ""
    assert entry.body is _body
    assert entry.backend_key == "eager"
    assert eval(entry.condition.text, dict(entry.condition.namespace), {"x": None})


def test_an_entry_dies_with_an_object_it_compares_by_identity() -> None:
    def made() -> None: ...

    entry = _entry(made)
    assert entry.alive()
    namespace = dict(entry.condition.namespace)
    assert eval(entry.condition.text, namespace, {"x": made})
    assert [guard.expected for guard in entry.guards] == ["eager", made]
    del made
    gc.collect()
    assert not entry.alive()
    assert [guard.expected for guard in entry.guards] == ["eager"]
    assert not eval(entry.condition.text, namespace, {"x": None})


def test_an_entry_keeps_no_class_or_method_alive() -> None:
    class Owned:
        def method(self) -> None: ...

    guards = [
        Guard(Local("x"), K.TYPE, Owned),
        Guard(TypeOf(Local("x")), K.CLASS_ATTR, ("method", Owned.method)),
        Guard(Local("n"), K.EQUALS, 3),
    ]
    entry = make_entry(guards, ("x", "n"), _body)
    assert entry.guards == tuple(guards)
    del Owned, guards
    gc.collect()
    assert not entry.alive()
    assert [guard.kind for guard in entry.guards] == [K.EQUALS]


def test_newest_entries_come_first_and_dead_ones_not_at_all() -> None:
    def made() -> None: ...

    first, second, third = _entry(None, 0), _entry(made, 1), _entry(True, 2)
    assert in_order([first, second, third]) == [third, second, first]
    del made
    gc.collect()
    assert in_order([first, second, third]) == [third, first]


def test_failures_name_guards_and_settings_beyond_them() -> None:
    x = torch.zeros(3)
    guards = [Guard(Local("x"), K.TENSOR, facts_of(x)), Guard(Source(), K.GLOBAL_STATE, current())]
    entry = make_entry(guards, ("x",), _body)
    assert entry.failures({"x": x}) == []
    assert [str(failure) for failure in entry.failures({"x": torch.zeros(4)})] == [
        "tensor `x`: expected float32[3] on cpu, got float32[4] on cpu"
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert not eval(entry.condition.text, dict(entry.condition.namespace), {"x": x})
        assert [str(failure) for failure in entry.failures({"x": x})] == [
            "global state: expected the settings it was compiled under, got another num_threads"
        ]
    finally:
        torch.set_num_threads(threads)


def test_describe_lists_the_guards() -> None:
    assert _entry(None).describe() == "backend: eager\nobject `x`: None"
