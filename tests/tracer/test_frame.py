import gc
import weakref

import pytest
import torch

from minidynamo.errors import GraphBreak, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import CellContents, Local
from minidynamo.tracer.frame import FrameRequest, StackSlot, trace_frame
from minidynamo.tracer.side_effects import AttrSet, Called, ContentsChanged
from minidynamo.tracer.traced_frame import Break, Null, Return
from minidynamo.variables.contexts import ContextExitVariable
from tests.tracer.capture import capture, guards_on, placeholders, targets


def ones(**options):
    return torch.ones(3, **options)


def test_the_graph_computes_what_the_function_does():
    x, y = torch.randn(3), torch.randn(3)
    traced = capture(lambda x, y: torch.relu(x + y) * 2, x, y)
    assert isinstance(traced.exit, Return) and placeholders(traced) == ["x", "y"]
    (result,) = traced.graph(x, y)
    assert torch.equal(result, torch.relu(x + y) * 2)


def test_a_break_ends_the_frame_before_the_call_group():
    def f(x, scale):
        y = x + 1
        return scale * y.sum(dim=0).item(), y

    end = capture(f, ones(), 2).exit
    assert isinstance(end, Break) and end.diagnostic.code == "MD212"
    assert list(end.local_variables) == ["y"]  # x and scale are not read again
    assert any(isinstance(value, Null) for value in end.stack)
    assert end.compiled_callee is None


def test_the_second_attempt_gives_the_same_graph_as_far_as_the_first_came():
    def f(x):
        y = x * 2
        print(y)
        return y.cos()

    assert len(targets(capture(f, ones()))) == 1


def test_fullgraph_raises_the_break():
    with pytest.raises(GraphBreak) as caught:
        capture(lambda x: x.item(), ones(), fullgraph=True)
    assert not isinstance(caught.value, SkipFrame)


def test_a_frame_that_cannot_be_cut_is_skipped():
    def f(x):
        try:
            raise ValueError
        except ValueError:
            print(x)

    first = capture(f, ones()).exit
    assert isinstance(first, Break)
    with pytest.raises(SkipFrame, match="MD220"):
        trace_frame(FrameRequest(compile("x = 1", "f", "exec"), {}, {}))


def test_an_endless_loop_is_given_up(monkeypatch):
    monkeypatch.setattr("minidynamo.tracer.interpreter.FrameChain.__init__.__defaults__", (1000,))

    def f(x):
        while True:
            x = x
        return x

    with pytest.raises(SkipFrame, match="MD221"):
        capture(f, ones())


def test_a_resume_point_reads_stack_locals_and_cells_by_name():
    def f(x, scale):
        y = x * scale
        return lambda: y

    code, cell = f.__code__, (lambda y: lambda: y)(ones()).__closure__[0]
    index = next(i for i, name in enumerate(opnames(code)) if name == "STORE_DEREF") + 1
    traced = trace_frame(FrameRequest(code, globals(), {"x": ones()}, {"y": cell}, index, (StackSlot("stack0", 5),)))
    assert isinstance(traced.exit, Return) and not guards_on(traced, "stack0")
    assert traced.exit.value.closure[0].source == Local("y")


def opnames(code):
    from minidynamo.bytecode.instructions import decode  # noqa: PLC0415

    return [instruction.opname for instruction in decode(code)]


def test_the_closure_of_the_root_is_read_through_its_cells():
    w = ones()
    traced = capture(lambda x: x + w, ones() * 2)
    assert isinstance(traced.inputs[1].source, CellContents) and placeholders(traced) == ["x", "w"]


def test_a_list_is_one_input_and_is_given_up_when_emptied():
    def f(xs):
        a, b, _c = xs
        xs.clear()
        return a * b

    traced = capture(f, [ones(), ones() * 2, ones() * 3])
    (graph_input,) = traced.inputs
    assert graph_input.given_up and graph_input.node.meta["steal_arg"]
    assert GuardKind.TENSOR not in guards_on(traced, "xs[2]")
    assert isinstance(traced.side_effects.journal[0], ContentsChanged)
    assert not capture(lambda xs: xs[0] + 1, [ones()]).inputs[0].given_up
    xs = [ones()]
    assert capture(lambda xs: xs[0] + 1, xs, steal={Local("xs"): xs}).inputs[0].given_up


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
            y.item()
        return y

    traced = capture(f, torch.ones(1))
    assert any(isinstance(value, ContextExitVariable) for value in traced.exit.stack)
    assert torch.is_grad_enabled() and not traced.side_effects.journal
    modes = [node.args[0] for node in traced.graph.graph.nodes if "grad" in str(node.target)]
    assert modes == [False, True]


def test_a_grad_mode_switched_for_good_is_switched_after_the_graph():
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    (effect,) = capture(f, ones()).side_effects.journal
    assert isinstance(effect, Called) and effect.args[0].value is False
    assert torch.is_grad_enabled()


def test_a_trace_keeps_no_input_alive():
    x = ones()
    dead = weakref.ref(x)
    traced = capture(lambda x: x + 1, x)
    del x
    gc.collect()
    assert traced.graph is not None and dead() is None


def test_global_state_and_distinct_inputs_are_guarded():
    traced = capture(lambda x, y: x + y, ones(), ones())
    kinds = [guard.kind for guard in traced.guards]
    assert kinds[0] is GuardKind.GLOBAL_STATE and kinds.count(GuardKind.DISTINCT_OBJECTS) == 1


def test_nodes_know_the_users_line():
    traced = capture(lambda x: torch.nn.functional.relu(x), ones())
    node = next(node for node in traced.graph.graph.nodes if node.op == "call_function")
    assert node.meta["user_location"].filename == __file__
    assert "relu" in node.meta["user_location"].expression()
