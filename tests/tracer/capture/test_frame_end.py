"""Tests of minidynamo/tracer/capture/frame_end.py: the results and side effects of a frame, and the guards for its next
call."""

import pytest
import torch

from minidynamo.errors import SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.tracer.records.side_effects import AttrSet, Called, ContentsChanged
from minidynamo.variables.callables import ContextExitVariable
from tests.tracer.capturing import capture, guards_on


def ones(**options):
    return torch.ones(3, **options)


def test_a_list_is_one_input_and_is_given_up_when_emptied():
    def f(xs):
        a, b, _c = xs
        xs.clear()
        return a * b

    traced = capture(f, [ones(), ones() * 2, ones() * 3])
    (graph_input,) = traced.inputs
    assert graph_input.is_emptied and graph_input.node.meta["steal_arg"]
    assert GuardKind.TENSOR not in guards_on(traced, "xs[2]")
    assert isinstance(traced.side_effects.journal[0], ContentsChanged)
    assert not capture(lambda xs: xs[0] + 1, [ones()]).inputs[0].is_emptied
    xs = [ones()]
    assert capture(lambda xs: xs[0] + 1, xs, steal={Local("xs"): xs}).inputs[0].is_emptied


def test_effects_that_nobody_sees_are_left_out():
    class Box:
        pass

    def f(x, box):
        hidden = Box()
        hidden.x = x
        box.seen = Box()
        box.seen.x = x + 1
        new = [1]
        new.append(2)
        return x

    box = Box()
    journal = capture(f, ones(), box).side_effects.journal
    assert [(type(effect), effect.name) for effect in journal] == [(AttrSet, "seen"), (AttrSet, "x")]


def test_what_is_written_to_must_stay_apart_from_its_like():
    def f(xs, ys):
        xs.append(1)
        return len(ys)

    traced = capture(f, [1], [2])
    assert guards_on(traced, "xs")[GuardKind.DISTINCT_OBJECTS] == (Local("ys"),)


def test_an_open_context_travels_on_the_stack_and_grad_mode_is_restored():
    def f(x):
        with torch.no_grad():
            y = x * 2
            y.numpy()
        return y

    traced = capture(f, torch.ones(1))
    assert any(isinstance(value, ContextExitVariable) for value in traced.exit.stack)
    (switched,) = traced.side_effects.journal
    assert torch.is_grad_enabled() and switched.args[0].value is False
    modes = [node.args[0] for node in traced.graph.graph.nodes if "grad" in str(node.target)]
    assert modes == [False, True]


def test_a_grad_mode_switched_for_good_is_switched_after_the_graph():
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    (effect,) = capture(f, ones()).side_effects.journal
    assert isinstance(effect, Called) and effect.args[0].value is False
    assert torch.is_grad_enabled()


def test_a_dict_and_the_attributes_of_an_object_must_stay_apart():
    class Box:
        pass

    def f(table, box):
        table["a"] = 1
        return box

    box = Box()
    box.a = 0
    (kinds,) = [guards_on(capture(lambda table, box: (f(table, box), box.a), {}, box), "box.__dict__")]
    assert kinds[GuardKind.DISTINCT_OBJECTS] == (Local("table"),)


@pytest.mark.parametrize("code", ["MD202", "MD222"])
def test_what_only_python_can_make_is_left_to_it(code):
    def changed_in_a_loop(x):
        table = {"a": 1, "b": 2}
        keys = iter(table)
        next(keys)
        table["c"] = 3
        return x + 1, keys

    def suspended(x):
        def numbers():
            try:
                yield x
            finally:
                x.add_(1)

        next(numbers())
        return x + 1

    with pytest.raises(SkipFrame, match=code):
        capture(changed_in_a_loop if code == "MD202" else suspended, ones())
