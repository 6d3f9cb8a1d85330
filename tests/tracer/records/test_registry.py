import pytest
import torch

import minidynamo
from minidynamo.tracer.capture import frame  # noqa: F401 (registers all handlers, before the tables are replaced)
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace
from minidynamo.variables.containers import SliceVariable


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """Replaces the tables by copies for each test."""
    for name in ("FUNCTIONS", "METHODS", "ATTRIBUTES", "ADVANCE", "POLYFILLS", "FOLDABLE", "FOLDABLE_TYPES"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())


def something(x):
    return x


class Words(list):
    pass


class Loud(list):
    def clear(self):
        print("cleared")


def handler(tx, *args):
    return None


def test_each_table_takes_a_handler_once():
    for register in (
        registry.function(something),
        registry.method(something.__class__, "no_such_method"),
        registry.attributes(type("Kind", (SliceVariable,), {})),
        registry.polyfill(something),
    ):
        assert register(handler) is handler
        with pytest.raises(ValueError, match="registered for the same key"):
            register(handler)


def test_each_class_gets_the_methods_that_it_defines_itself():
    assert registry.methods((Words, Loud), "clear", "no_such_method")(handler) is handler
    assert registry.METHODS[Loud, "clear"] is handler
    assert (Words, "clear") not in registry.METHODS and (Loud, "no_such_method") not in registry.METHODS


def test_the_twin_of_a_method_serves_both_ways_to_call_it():
    @registry.polyfill(bytearray.title)
    def title(self):
        return self

    handler = registry.find_method(bytearray, "title")
    called = []

    class Tracer:
        def call(self, *call, lazy):
            called.append(call)
            assert lazy

    handler(Tracer(), "receiver", option=1)
    assert registry.POLYFILLS[id(bytearray.title)] is title
    assert called == [(title, ("receiver",), {"option": 1})]


def test_methods_are_inherited_unless_overridden():
    found = registry.find_method(list, "clear")
    assert found is not None and registry.find_method(Words, "clear") is found
    assert registry.find_method(Loud, "clear") is None


def test_foldable_callables_and_types():
    registry.fold(something)
    registry.fold_type(Words)
    assert id(something) in registry.FOLDABLE and Words in registry.FOLDABLE_TYPES


def test_it_breaks_the_graph_where_a_twin_is_traced():
    def joined(x):
        return x + 1, sum([[1]], [len(x)])

    compiled = minidynamo.compile(joined, backend="eager")
    assert compiled(torch.ones(2))[1] == [2, 1]

    def text(x):
        try:
            sum([], "")
        except TypeError:
            return x + 1

    compiled = minidynamo.compile(text, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert "sum refuses it" in compiled.breaks()


def test_it_never_runs():
    with pytest.raises(NotImplementedError, match="this: that"):
        cannot_trace("this", "that")
