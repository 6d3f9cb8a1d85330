"""Each tracker with a filler also has a builder, and a name hint."""

from minidynamo.tracer.reconstruct.builders import BUILDERS, FILLERS, builds, hint_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.iterators import ZipIterator


def test_the_families_are_registered() -> None:
    assert FILLERS.keys() < BUILDERS.keys()
    assert len(BUILDERS) > 20


def test_a_name_is_the_familys_or_the_classs() -> None:
    assert hint_of(ListVariable([])) == "items"
    assert hint_of(ZipIterator([])) == "zip"


def test_a_decorator_fills_the_table() -> None:
    class Tracker(VariableTracker):
        pass

    try:
        build = builds(Tracker, hint="thing")(lambda rebuild, variable: "thing()")
        assert BUILDERS[Tracker] is build
    finally:
        BUILDERS.pop(Tracker, None)
