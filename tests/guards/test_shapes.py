"""Symbols of a frame: their sources, and the fate of the conditions that were evaluated on symbols."""

from __future__ import annotations

import torch

from minidynamo.guards.check import describe
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import (
    Computed,
    Constant,
    Local,
    Size,
)
from minidynamo.guards.tensors import facts_of

X, Y = Local("x"), Local("y")


def symbolic(**tensors: torch.Tensor) -> tuple[Shapes, list[Guard], dict[str, tuple[int, ...]]]:
    """Returns shapes for tensors with dynamic sizes, the guards of the tensors, and their sizes."""
    shapes = Shapes(FrameProfile(dynamic=True), lambda: None)
    guards, sizes = [], {}
    for name, tensor in tensors.items():
        layout = shapes.layout(Local(name), tensor)
        shapes.use(Local(name))
        guards.append(Guard(Local(name), GuardKind.TENSOR, facts_of(tensor, layout)))
        sizes[name] = layout[0]
    return shapes, guards, sizes


def said(shapes: Shapes, guards: list[Guard]) -> list[str]:
    return [line.strip() for line in describe(shapes.guards(guards)).splitlines()]


def test_nothing_is_made_for_sizes_that_do_not_vary() -> None:
    shapes = Shapes(FrameProfile(), lambda: None)
    x = torch.zeros(3, 4)
    assert shapes.layout(X, x) == ((3, 4), (4, 1))
    assert not shapes.is_symbolic


def test_sizes_zero_and_one_are_constants() -> None:
    shapes, guards, sizes = symbolic(x=torch.zeros(5, 1, 0))
    assert sizes["x"][1:] == (1, 0)
    assert said(shapes, guards) == ["tensor `x`: float32[?, 1, 0] on cpu", "relation `2 <= x.shape[0]`: to hold"]


def test_equal_sizes_are_guarded_to_stay_equal() -> None:
    shapes, guards, _ = symbolic(x=torch.zeros(3), y=torch.zeros(3))
    assert "relation `y.shape[0] == x.shape[0]`: to hold" in said(shapes, guards)


def test_a_size_that_is_not_used_stands_for_no_other_one() -> None:
    shapes = Shapes(FrameProfile(dynamic=True), lambda: None)
    shapes.layout(X, torch.zeros(3))
    layout = shapes.layout(Y, torch.zeros(3))
    shapes.use(Y)
    assert shapes.source_of(layout[0][0]) == Size(Y, 0)
    assert said(shapes, []) == ["relation `2 <= y.shape[0]`: to hold"]


def test_a_condition_becomes_a_relation_and_a_value_a_size() -> None:
    shapes, guards, sizes = symbolic(x=torch.zeros(3, 8), y=torch.zeros(5))
    assert sizes["x"][0] + sizes["y"][0] < 10
    assert int(sizes["x"][1]) == 8
    lines = said(shapes, guards)
    assert lines[0] == "tensor `x`: float32[?, 8] on cpu"
    assert "relation `y.shape[0] + x.shape[0] < 10`: to hold" in lines


def test_each_decision_is_announced_once() -> None:
    shapes, _, sizes = symbolic(x=torch.zeros(5))
    reported: list[object] = []
    shapes.on_decision = reported.append
    shapes.report_decisions()
    assert reported == []
    assert sizes["x"][0] < 7 and shapes.float(Y, 0.5) > 0
    assert reported == []  # an error here would break torch, which evaluates the condition
    shapes.report_decisions()
    shapes.report_decisions()
    assert reported == [Size(X, 0), Y]
    shapes.require(Computed("{0} < 3", (Y,)), True)
    assert reported[2:] == [Computed("{0} < 3", (Y,))]


def test_what_a_condition_calls_is_found_whatever_the_program_has_under_its_name() -> None:
    shapes, guards, sizes = symbolic(x=torch.zeros(3), y=torch.zeros(5))
    assert torch.sym_float(sizes["x"][0]) < 3.5
    assert torch.sym_max(sizes["x"][0] * 2, sizes["y"][0]) == 6
    made = [guard for guard in shapes.guards(guards) if "float(" in guard.source.display()]
    (condition,) = made
    assert isinstance(condition.source, Computed) and "torch" not in condition.source.template
    assert Constant(float, "float") in condition.source.operands


def test_strides_follow_sizes_unless_they_jump() -> None:
    profile = FrameProfile()
    shapes = Shapes(profile, lambda: None)
    shapes.layout(X, torch.zeros(3, 4))
    shapes.layout(X, torch.zeros(5, 6))
    sizes, strides = shapes.layout(X, torch.zeros(5, 7))
    assert str(strides[0]) == str(sizes[1])
    shapes.layout(Y, torch.zeros(3, 8)[:, :4])
    _, strides = shapes.layout(Y, torch.zeros(3, 9)[:, :4])
    assert str(strides[0]) not in ("9", str(sizes[1]))
