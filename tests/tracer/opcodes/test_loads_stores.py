import torch

from minidynamo.guards.guard import GuardKind
from tests.end_to_end.programs import vector
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
    return (x + 1).item()


def test_the_callee_of_a_break_is_where_the_call_finds_it():
    end = capture(lambda x: called(x[0] * 2), vector()).exit
    assert end.stack[end.compiled_callee].value is called
