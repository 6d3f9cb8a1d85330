"""Tests of minidynamo/tracer/capture/residual.py: printed programs, run on real values."""

import functools
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.names import Namespace
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Attr, Computed, Constant, Drawn, InstanceAttr, Item, Local
from minidynamo.tracer.capture.residual import MANY_INPUTS, print_draws
from minidynamo.tracer.records.side_effects import Draw
from minidynamo.tracer.records.traced_frame import Null
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.callables import BuiltinVariable, CellVariable, FunctionVariable
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.objects import ModuleVariable
from tests.tracer.frame_builder import Box, FrameBuilder, ones

C = ConstantVariable


# Values


def test_a_frame_without_graph_or_effects_only_returns() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    residual = frame.print(frame.returns(x))
    assert residual.source.splitlines() == ["def step(boxed):", "    x, = boxed", "    boxed.clear()", "    return x"]
    value = ones()
    boxed = [value]
    assert residual.body(boxed) is value
    assert boxed == []


def test_the_program_is_boxed_and_in_no_reference_cycle() -> None:
    frame = FrameBuilder()
    residual = frame.print(frame.returns(C(None)))
    assert residual.body._boxed_call  # type: ignore[attr-defined]
    assert "step" not in residual.namespace
    alive = weakref.ref(residual.body)
    del residual
    assert alive() is None


def test_parameters_may_be_called_like_anything() -> None:
    frame = FrameBuilder()
    names = ["boxed", "args", "graph", "list", "object", "step", "out0", "G"]
    tensors = [frame.tensor(name) for name in names]
    items = ListVariable([frame.op(torch.add, tensors[0], tensors[1]), *tensors])
    made = frame.print(frame.returns(items)).body([ones() for _ in names])
    assert len(made) == 9
    assert torch.equal(made[0], ones() * 2)


def test_deep_sources_are_read_once_and_shared() -> None:
    frame = FrameBuilder()
    box = frame.object("m", Box)
    assert box.source is not None
    table = InstanceAttr(box.source, "table")
    w, b = frame.tensor("w", Item(table, "w")), frame.tensor("b", Item(table, "b"))
    result = frame.op(torch.add, w, b)
    residual = frame.print(frame.returns(TupleVariable([result, w])))
    assert residual.source.count("__dict__") == 1
    value = Box()
    value.__dict__["table"] = {"w": ones(), "b": ones()}
    made = residual.body([value])
    assert torch.equal(made[0], ones() * 2)
    assert made[1] is value.__dict__["table"]["w"]


# Memory


def test_many_inputs_may_come_from_the_guards() -> None:
    frame = FrameBuilder()
    frame.parameter("box")
    names = [f"p{k}" for k in range(MANY_INPUTS)]
    held = [frame.tensor(name, InstanceAttr(Local("box"), name)) for name in names]
    total = functools.reduce(lambda one, other: frame.op(torch.add, one, other), held)
    residual = frame.print(frame.returns(total))
    assert residual.inputs == tuple(InstanceAttr(Local("box"), name) for name in names)
    assert residual.source.startswith("def step(boxed, args=None):")
    box = types.SimpleNamespace(**{name: torch.full((2,), float(k)) for k, name in enumerate(names)})
    expected = sum(range(MANY_INPUTS))
    assert residual.body([box]).tolist() == [expected] * 2
    given = [torch.ones(2) for _ in names]
    assert residual.body([box], given).tolist() == [MANY_INPUTS] * 2
    assert given == []


# Effects


def test_all_loads_come_before_all_stores() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    box = frame.object("m", Box)
    assert box.source is not None
    before = frame.tensor("last", InstanceAttr(box.source, "last"))
    frame.side_effects.set_attr(box, "last", frame.op(torch.neg, x))
    value = Box()
    old = ones() * 7
    value.__dict__["last"] = old
    assert frame.print(frame.returns(before)).body([ones(), value]) is old
    assert torch.equal(value.__dict__["last"], -ones())


# Breaks


def _first_step(boxed: list[Any]) -> Any:
    return None, list(boxed)


def _drive(step: Any, boxed: list[Any]) -> Any:
    while step is not None:
        step, boxed = step(boxed)
    return boxed


def test_a_break_hands_on_cells_stack_and_locals() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    y = frame.op(torch.neg, x)
    cell = CellVariable(y)
    traced = frame.breaks({"x": x, "n": C(3)}, stack=[BuiltinVariable(len), Null(), y], cells={"c": cell})
    residual = frame.print(traced, break_function=_first_step, run_steps=_drive)
    assert "# graph break: `if` on a tensor value (train.py:37 in step)" in residual.source
    value = ones()
    made_cell, function, top, first, number = residual.body([value])
    assert type(made_cell) is types.CellType
    assert made_cell.cell_contents is top
    assert function is len
    assert first is value
    assert number == 3
    step, values = frame.print(traced, root=False, break_function=_first_step).body([value])
    assert step is _first_step
    assert len(values) == 5


def test_the_frame_point_tells_which_values_travel() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    cells = {"a": CellVariable(C(1)), "b": CellVariable(C(2))}
    traced = frame.breaks({"x": x, "dead": C(0)}, stack=[C("s")], cells=cells)
    point = FramePoint(_first_step.__code__, 7, ("value",), ("x",), ("b",))
    residual = frame.print(traced, root=False, break_function=_first_step, point=point)
    value = ones()
    _, (cell, top, local) = residual.body([value])
    assert (cell.cell_contents, top) == (2, "s")
    assert local is value


def test_the_callee_of_a_break_is_replaced_by_its_compiled_form() -> None:
    def helper() -> None: ...

    frame = FrameBuilder()
    function = FunctionVariable(helper, source=Local(frame.parameter("f")))
    traced = frame.breaks({}, stack=[Null(), function], cells={"c": CellVariable(C(1))}, compiled_callee=1)
    residual = frame.print(traced, root=False, break_function=_first_step, dispatcher_for=lambda f: ("compiled", f))
    _, (_, callee) = residual.body([helper])
    assert callee == ("compiled", helper)


# Readability


def test_a_whole_program(golden: Callable[[str, str], None]) -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    xs = frame.tensors("xs", 2, given_up=True)
    model = ModuleVariable(Box, Box, source=Local(frame.parameter("self")))
    assert model.source is not None
    weight = frame.tensor("weight", Item(InstanceAttr(model.source, "_parameters"), "weight"))
    product = frame.op(torch.mul, frame.op(torch.add, x, xs.items[0]), weight)
    xs.items[:] = [xs.items[1], product]
    frame.side_effects.contents_changed(xs)
    frame.side_effects.set_attr(model, "calls", C(3))
    residual = frame.print(
        frame.breaks({"x": x, "out": product}, stack=[BuiltinVariable(torch.relu), Null()]),
        break_function=_first_step,
        run_steps=_drive,
    )
    golden(residual.source, "residual/break.py.txt")


def printed(*, keeps: bool) -> tuple[str, list[str], Namespace]:
    generator, uniform = Attr(Local("m"), "generator"), Constant(random.Random.uniform, "uniform")
    call = Computed("{0}({1}, 0, 1)", (uniform, generator))
    names = Namespace(["m", "drawn_0", "drawn_1"])
    reader = Reader(names)
    draws = [Draw(Drawn(f"drawn_{number}"), generator, call, may_be_skipped=False) for number in range(2)]
    before, lines = print_draws(draws, reader, names, keeps=keeps)
    return before, reader.finished(lines), names


def test_equal_draws_are_draws_of_their_own() -> None:
    before, lines, _ = printed(keeps=False)
    assert before == ""
    assert lines == ["drawn_0 = uniform((t := m.generator), 0, 1)", "drawn_1 = uniform(t, 0, 1)"]


def test_the_state_is_kept_once_for_each_generator() -> None:
    before, lines, names = printed(keeps=True)
    assert lines[0] == f"{before} = states_of((t := m.generator))" and len(lines) == 3

    class Model:
        generator = random.Random(4)

    found = {**names.values, "m": Model}
    exec("\n".join(lines), found)
    expected = random.Random(4)
    assert (found["drawn_0"], found["drawn_1"]) == (expected.uniform(0, 1), expected.uniform(0, 1))
    assert found[before] == [(Model.generator.setstate, random.Random(4).getstate())]
