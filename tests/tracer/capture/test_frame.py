import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch

import minidynamo
from minidynamo import tracer
from minidynamo.errors import GraphBreak, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import CellContents, Local
from minidynamo.tracer.capture.frame import register_all, trace_frame
from minidynamo.tracer.records.traced_frame import FrameRequest, Return, StackSlot
from tests.tracer.capturing import capture, guards_on, placeholders, targets


def ones(**options):
    return torch.ones(3, **options)


def test_the_graph_computes_what_the_function_does():
    x, y = torch.randn(3), torch.randn(3)
    traced = capture(lambda x, y: torch.relu(x + y) * 2, x, y)
    assert isinstance(traced.exit, Return) and placeholders(traced) == ["x", "y"]
    (result,) = traced.graph(x, y)
    assert torch.equal(result, torch.relu(x + y) * 2)


def test_the_second_attempt_gives_the_same_graph_as_far_as_the_first_came():
    def f(x):
        y = x * 2
        minidynamo.graph_break()
        print(y)
        return y.cos()

    assert len(targets(capture(f, ones()))) == 1


def test_fullgraph_raises_the_break():
    with pytest.raises(GraphBreak) as caught:
        capture(lambda x: x.item(), ones(), fullgraph=True)
    assert not isinstance(caught.value, SkipFrame)


def test_an_endless_loop_is_given_up(monkeypatch):
    monkeypatch.setattr("minidynamo.tracer.frames.interpreter.STEP_LIMIT", 1000)

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


def test_every_opcode_handler_polyfill_and_wrapper_is_imported():
    register_all()
    (folder,) = map(Path, tracer.__path__)
    files = [path for room in ("opcodes", "handlers", "polyfills", "wrappers") for path in folder.glob(f"{room}/*.py")]
    names = {".".join(["minidynamo.tracer", *path.relative_to(folder).with_suffix("").parts]) for path in files}
    missing = {name.removesuffix(".__init__") for name in names} - sys.modules.keys()
    assert len(files) > 40 and not missing
