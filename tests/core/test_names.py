"""Tests of minidynamo/core/names.py."""

import gc
import weakref

import pytest
import torch

from minidynamo.core.names import Namespace, identifier, module_of, name_of


class Thing:
    pass


def test_one_object_has_one_name_and_no_two_objects_share_one() -> None:
    names = Namespace()
    first, second = [1], [1]
    assert names.constant(first, "xs") == names.constant(first, "other") == "xs"
    assert names.constant(second, "xs") == "xs_1"
    assert names.values == {"xs": first, "xs_1": second}
    assert names.values["xs"] is first


def test_names_avoid_reserved_words_parameters_and_builtins() -> None:
    names = Namespace(["x", "len"])
    assert names.fresh("x") == "x_1"
    assert names.fresh("class") == "class_1"
    assert names.fresh("print") == "print_1"
    assert names.fresh("a.b[0]") == "a_b_0"
    assert names.fresh("0") == "_0"
    assert names.fresh("é") == "value"


def test_builtins_keep_their_name_unless_it_is_taken() -> None:
    names = Namespace(["len"])
    assert names.constant(type, "type") == "type"
    assert "type" not in names.values
    assert names.constant(len, "len") == "len_1"
    assert names.values == {"len_1": len}


def test_suffix_ends_every_bound_name() -> None:
    names = Namespace(suffix="_7")
    assert names.constant(Thing, "Thing") == "Thing_7"
    assert names.constant([], "Thing") == "Thing_7_1"


def test_weak_names_hold_nothing_alive() -> None:
    names = Namespace()
    thing = Thing()
    name = names.weak(thing, "thing")
    assert name == "thing_ref"
    assert names.weak(thing, "again") == name
    assert names.values[name]() is thing
    assert names.watched() == (names.values[name],)
    alive = weakref.ref(thing)
    del thing
    gc.collect()
    assert alive() is None
    assert names.weak(3, "three") is None


def test_only_classes_functions_and_modules_are_asked_for_their_name() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> object:
            raise AssertionError("user code ran")

    assert (name_of(Hostile()), module_of(Hostile())) == ("Hostile", "")
    assert (name_of(Hostile), module_of(Hostile)) == ("Hostile", __name__)
    assert (name_of(gc), module_of(gc)) == ("gc", "gc")
    assert name_of(torch.relu) == "relu"
    assert name_of(3) == "int"


IDENTIFIERS = {
    "R²": "R2",
    "µ_law": "μ_law",
    "ﬁt": "fit",
    "loss x": "loss_x",
    "<lambda>": "lambda_",
    "½": "1_2",
    "class": "class_",
    "\udc80": "value",
    "௰": "value",
    "größe": "größe",
    ".0": "0",
}


@pytest.mark.parametrize("text", IDENTIFIERS)
def test_an_identifier_is_read_unchanged(text):
    expected = IDENTIFIERS[text]
    assert identifier(text) == expected
    exec(f"_{expected} = 1", namespace := {})
    assert f"_{expected}" in namespace
