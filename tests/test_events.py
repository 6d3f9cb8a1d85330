"""Tests of minidynamo/events.py and of the remaining public modules: public import paths do not change."""

from __future__ import annotations

import importlib

import pytest

import minidynamo
from minidynamo import events
from minidynamo.core import events as implementation

PUBLIC = {
    "minidynamo.comptime": ["comptime"],
    "minidynamo.config": ["config"],
    "minidynamo.errors": ["ArgumentError", "Diagnostic", "MinidynamoError"],
    "minidynamo.events": ["KINDS", "Event", "MinidynamoNotice", "on_event"],
    "minidynamo.testing": ["CompileCounter", "assert_same_as_eager", "no_recompile"],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_found_by_path(module):
    imported = importlib.import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(imported, name)] == []


def test_events_are_those_that_the_implementation_publishes():
    assert events.on_event is implementation.on_event is minidynamo.on_event
    seen = []
    unsubscribe = events.on_event(seen.append)
    implementation.publish("artifact", "a name", path="", text="")
    unsubscribe()
    assert [(type(event), event.kind) for event in seen] == [(events.Event, "artifact")]
