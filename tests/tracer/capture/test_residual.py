"""Tests of minidynamo/tracer/capture/residual.py: printed programs, run on real values."""

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from minidynamo.bytecode.layout import FramePoint
from minidynamo.guards.source import CellContents, Constant, InstanceAttr, Item, Local
from minidynamo.tracer.capture.residual import MANY_INPUTS
from minidynamo.tracer.records.traced_frame import Null
from minidynamo.variables.callables import BuiltinVariable, CellVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, DictVariable, ListVariable, TupleVariable
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable
from minidynamo.variables.iterators import SequenceIterator
from minidynamo.variables.objects import ModuleVariable, ObjectVariable
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


def test_the_graph_gets_what_it_needs_and_its_outputs_are_rebuilt() -> None:
    frame = FrameBuilder()
    x, y = frame.tensor("x"), frame.tensor("y")
    total = frame.op(torch.add, x, y)
    result = DictVariable({DictKey("a", C("a")): total, DictKey("b", C("b")): ListVariable([total, x, C(3)])})
    residual = frame.print(frame.returns(result))
    first, second = ones(), ones()
    made = residual.body([first, second])
    assert torch.equal(made["a"], torch.full((2,), 2.0))
    assert made["b"] == [made["a"], first, 3]
    assert made["b"][0] is made["a"]
    assert made["b"][1] is first


def test_a_resumed_frame_returns_a_pair() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    step, value = frame.print(frame.returns(frame.op(torch.neg, x)), root=False).body([ones()])
    assert step is None
    assert torch.equal(value, -ones())


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


def _watch(log: list[bool], watched: list[weakref.ref[Any]]) -> Callable[..., Any]:
    def probe(x: torch.Tensor) -> torch.Tensor:
        log.append(any(reference() is not None for reference in watched))
        return x.clone()

    return probe


def test_arguments_die_when_the_graph_has_used_them() -> None:
    log: list[bool] = []
    watched: list[weakref.ref[Any]] = []
    frame = FrameBuilder()
    x = frame.tensor("x")
    frame.parameter("unused")
    result = frame.op(_watch(log, watched), frame.op(torch.neg, x))
    residual = frame.print(frame.returns(result))
    values: list[Any] = [ones(), ones()]
    watched += [weakref.ref(value) for value in values]
    residual.body(values)
    assert log == [False]


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


def test_elements_of_a_list_that_was_given_up_die_in_the_graph() -> None:
    log: list[bool] = []
    watched: list[weakref.ref[Any]] = []
    frame = FrameBuilder()
    xs = frame.tensors("xs", 2, given_up=True)
    result = frame.op(_watch(log, watched), frame.op(torch.add, *xs.items))
    xs.items.clear()
    frame.side_effects.contents_changed(xs)
    residual = frame.print(frame.returns(result))
    real = [ones(), ones()]
    watched += map(weakref.ref, real)
    assert torch.equal(residual.body([real]), ones() * 2)
    assert log == [False]
    assert real == []


def test_elements_that_survive_are_put_back_by_alias() -> None:
    frame = FrameBuilder()
    xs = frame.tensors("xs", 3, given_up=True)
    first, second, third = xs.items
    result = frame.op(torch.add, first, second)
    xs.items[:] = [third, result]
    frame.side_effects.contents_changed(xs)
    residual = frame.print(frame.returns(second))
    real = [ones(), ones(), ones()]
    elements = list(real)
    assert residual.body([real]) is elements[1]
    assert len(real) == 2
    assert real[0] is elements[2]
    assert torch.equal(real[1], ones() * 2)


def test_a_stolen_list_that_lives_on_behind_a_break_keeps_its_items() -> None:
    frame = FrameBuilder()
    xs = frame.tensors("xs", 2, given_up=True)
    result = frame.op(torch.neg, xs.items[0])
    traced = frame.breaks({"a": result, "xs": xs})
    residual = frame.print(traced, root=False, break_function=_first_step)
    real = [ones(), ones()]
    elements = list(real)
    _, (_, passed) = residual.body([real])
    assert passed is real
    assert [a is b for a, b in zip(real, elements)] == [True, True]


def test_nothing_is_kept_while_the_steps_behind_a_break_run() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    y = frame.op(torch.neg, x)
    seen: list[bool] = []

    def step(boxed: list[Any]) -> tuple[None, None]:
        references = [weakref.ref(value) for value in boxed if isinstance(value, torch.Tensor)]
        assert len(references) == 3
        boxed.clear()
        seen.extend(reference() is not None for reference in references)
        return None, None

    traced = frame.breaks({"x": x, "y": y, "z": frame.op(torch.neg, y), "items": ListVariable([y])})
    frame.print(traced, break_function=step, run_steps=_drive).body([ones()])
    assert seen == [False, False, False]


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


def test_effects_happen_in_program_order() -> None:
    seen: list[object] = []
    box = Box()

    def look() -> None:
        seen.append(box.__dict__["slot"])

    frame = FrameBuilder()
    tracked = frame.object("r", Box)
    frame.side_effects.set_attr(tracked, "slot", C(1))
    frame.side_effects.record_call(BuiltinVariable(look, source=Constant(look, "look")))
    frame.side_effects.set_attr(tracked, "slot", C(2))
    frame.print(frame.returns(C(None))).body([box])
    assert seen == [1] and box.__dict__["slot"] == 2


def test_the_old_contents_of_a_cell_are_read_before_it_is_written() -> None:
    cell = types.CellType(ones() * 3)
    frame = FrameBuilder()
    x = frame.tensor("x")
    old = frame.tensor("old", CellContents(Constant(cell, "state")))
    frame.side_effects.set_cell(CellVariable(None, cell, source=Constant(cell, "state")), frame.op(torch.add, x, old))
    residual = frame.print(frame.returns(old))
    for expected in (4.0, 5.0):
        assert torch.equal(residual.body([ones()]), torch.full((2,), expected - 1))
        assert torch.equal(cell.cell_contents, torch.full((2,), expected))


def test_an_object_made_in_the_frame_is_the_same_in_the_result_and_in_effects() -> None:
    frame = FrameBuilder()
    box = frame.object("m", Box)
    made = ObjectVariable(None, Box)
    frame.side_effects.set_attr(made, "count", C(1))
    frame.side_effects.set_attr(box, "child", made)
    frame.side_effects.set_attr(made, "parent", box)
    frame.side_effects.set_attr(made, "count", C(2))
    value = Box()
    child = frame.print(frame.returns(made)).body([value])
    assert value.__dict__["child"] is child
    assert child.__dict__ == {"count": 2, "parent": value}


def test_a_list_iterator_is_placed_behind_new_contents() -> None:
    frame = FrameBuilder()
    xs = frame.tensors("xs", 2, given_up=True)
    last = xs.items[1]
    frame.op(torch.neg, xs.items[0])
    xs.items[:] = [C("a"), last, C("b")]
    frame.side_effects.contents_changed(xs)
    real: list[Any] = [ones(), ones()]
    iterator = frame.print(frame.returns(SequenceIterator(xs, 2))).body([real])
    assert list(iterator) == ["b"]


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


def test_contexts_are_entered_by_effects_before_they_are_handed_on() -> None:
    log: list[str] = []

    class Context:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            log.append(f"enter {self.name} {box.__dict__['count']}")

        def __exit__(self, *exception: object) -> None:
            log.append(f"exit {self.name}")

    frame = FrameBuilder()
    target = frame.object("m", Box)
    frame.side_effects.set_attr(target, "count", C(9))
    outer, inner = ContextVariable(Context, ("outer",)), ContextVariable(Context, ("inner",))
    enter = FunctionVariable(Context.__enter__, source=Constant(Context.__enter__, "enter"))
    for context in (outer, inner):
        frame.side_effects.record_call(enter, context)
    traced = frame.breaks({"ctx": outer}, stack=[ContextExitVariable(outer), ContextExitVariable(inner)])
    box = Box()
    residual = frame.print(traced, root=False, break_function=_first_step)
    _, (leave, _, aliased_tangents) = residual.body([box])
    assert log == ["enter outer 9", "enter inner 9"]
    assert leave.__self__ is aliased_tangents


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
