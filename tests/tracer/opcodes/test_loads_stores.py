# The programs keep the style of users, against the advice of linters.
# ruff: noqa: I001, PLC0415

import sys
import types

import torch

import minidynamo
from minidynamo.guards.guard import GuardKind
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capturing import capture, guards_on

counted = 0


def test_globals_are_guarded_and_written_back():
    def count(x):
        global counted
        counted += 1
        return x + counted

    traced = capture(count, torch.ones(2))
    assert next(iter(guards_on(traced, "counted").values())) == 0
    (effect,) = traced.side_effects.journal
    assert (effect.name, effect.value.value) == ("counted", 1)


def test_builtins_are_guarded_against_a_global_of_that_name():
    traced = capture(lambda x: x + len([1]), torch.ones(2))
    (guard,) = [g for g in traced.guards if g.expected == "len"]
    assert guard.kind is GuardKind.MISSING_KEY


def test_arguments_that_are_only_passed_on_are_not_guarded():
    traced = capture(lambda x, n: (x + 1, n), torch.ones(2), 5)
    assert not guards_on(traced, "n")
    assert guards_on(capture(lambda x, n: x + n, torch.ones(2), 5), "n")
    several = capture(lambda x, a, b, c, d: (x + 1, a, [b, c], {"d": d}), torch.ones(2), 1, 2, 3, 4)
    assert not any(guards_on(several, name) for name in "abcd")


def called(x):
    return (x + 1).numpy()


def test_the_callee_of_a_break_is_where_the_call_finds_it():
    end = capture(lambda x: called(x[0] * 2), vector()).exit
    assert end.stack[end.compiled_callee].value is called


programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    def modules_that_are_loaded(x):
        import math
        import os.path
        from torch.nn import functional as F

        return F.relu(x) * math.pi, os.path.sep


def test_whether_a_module_has_the_name_is_guarded():
    module = types.ModuleType("tests_part")

    def program(x):
        try:
            from tests_part import name
        except ImportError:
            name = 5
        return x + name

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    sys.modules["tests_part"] = module
    try:
        assert torch.equal(compiled(x), x + 5)
        module.name = 2
        assert torch.equal(compiled(x), x + 2)
        del module.name
        assert torch.equal(compiled(x), x + 5)
        assert compiled.stats.compiles == 2
    finally:
        del sys.modules["tests_part"]


def test_a_loaded_module_that_is_no_attribute_of_its_package():
    def program(x):
        from tests_package import part

        return x + part.number

    compiled = minidynamo.compile(program, backend="eager")
    sys.modules |= {name: types.ModuleType(name) for name in ("tests_package", "tests_package.part")}
    sys.modules["tests_package.part"].number = 3
    try:
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    finally:
        del sys.modules["tests_package"], sys.modules["tests_package.part"]
