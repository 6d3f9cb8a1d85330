"""Tests of minidynamo/tracer/runtime/rollback.py: values held for a rerun, and the point after which a rerun is too
late."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.memory import peak_bytes
from minidynamo.compat import memory_of
from minidynamo.tracer.graph.written_memory import Writes, find_writes
from minidynamo.tracer.runtime.rollback import (
    HeldItem,
    HeldList,
    HeldSlot,
    Overwritten,
    firmly_held,
    random_states,
    revive,
    states_of,
    weakly_held,
)


def notes(held: list[Any], lost: str = "", error: BaseException | None = None, **kept: Any) -> list[str]:
    """Returns the notes on an error after which the frame does not run again."""
    error = RuntimeError() if error is None else error
    assert revive(error, held, lost, **kept) is None
    return getattr(error, "__notes__", [])


def test_what_is_held_comes_back_and_keeps_no_tensor_alive() -> None:
    x, items = torch.ones(2), [1]
    held = [weakly_held(x), weakly_held(items)]
    values = revive(RuntimeError(), held)
    assert values is not None and values[0] is x and values[1] is items
    del x, values
    freed, lost = notes(held, "What was lost.")
    assert "already been freed" in freed and lost == "What was lost."


def test_a_list_gets_back_all_elements_that_are_alive() -> None:
    items: list[object] = [torch.ones(1), torch.zeros(2), 3]
    taken = items[0]
    held = HeldList(items, (1, 2), weakly_held)
    items.clear()
    revive(RuntimeError(), [], taken=[held])
    assert len(items) == 3 and items[0] is taken
    del taken
    items.clear()
    assert "already been freed" in notes([], taken=[held])[0] and len(items) == 2


class Slots:
    __slots__ = ("x",)


def filled_slots(x: torch.Tensor) -> Slots:
    made = Slots()
    made.x = x
    return made


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.parametrize("how, make", [(HeldItem, lambda x: {"x": x}), (HeldSlot, filled_slots)])
def test_a_place_gets_its_tensor_back_or_is_left_as_the_program_leaves_it(
    how: Any, make: Callable[[torch.Tensor], Any], is_removed: bool
) -> None:
    x = torch.ones(1)
    owner = make(x)

    def found() -> object:
        return owner.get("x", "nothing") if isinstance(owner, dict) else getattr(owner, "x", "nothing")

    held = how(owner, "x", weakly_held, is_removed=is_removed)
    assert found() is None
    revive(RuntimeError(), [], taken=[held])
    assert found() is x
    held = how(owner, "x", weakly_held, is_removed=is_removed)
    assert notes([], error=KeyboardInterrupt(), taken=[held]) == [] and found() is x
    kept = how(owner, "x", firmly_held)
    del x
    revive(RuntimeError(), [], taken=[kept])
    assert isinstance(found(), torch.Tensor)
    del kept
    held = how(owner, "x", weakly_held, is_removed=is_removed)
    assert "already been freed" in notes([], taken=[held])[0] and found() == ("nothing" if is_removed else None)


def overwriting(operation: str, *, can_roll_back: bool) -> Writes:
    """Returns the writes of a graph of a number, a tensor and a list of a tensor, which writes to both tensors."""
    graph = torch.fx.Graph()
    graph.placeholder("number")
    x, ys = graph.placeholder("x"), graph.placeholder("ys")
    y = graph.call_function(operator.getitem, (ys, 0))
    fakes = {x: torch.empty(2), y: torch.empty(2)}
    for node, fake in fakes.items():
        graph.call_method(operation, (node,)).meta["written_memory"] = (memory_of(fake),)
    if can_roll_back:
        graph.call_function(torch.linalg.cholesky, (x,))
    graph.output(())
    writes, _ = find_writes(torch.fx.GraphModule({}, graph), fakes, may_raise=can_roll_back)
    assert writes is not None and writes.can_roll_back is can_roll_back
    return writes


@pytest.mark.parametrize("place", ["argument", "list"])
def test_nothing_runs_twice_behind_a_write_that_is_not_kept(place: str) -> None:
    x, y = torch.ones(2), torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_roll_back=False), [3, x, [y]])
    held = [weakly_held(x), weakly_held(y)]
    values = revive(RuntimeError(), held, overwritten=overwritten)
    assert values is not None and values[1] is y
    (x if place == "argument" else y).add_(1)
    (note,) = notes(held, overwritten=overwritten)
    assert "written to" in note


def test_writes_to_inference_tensors_are_not_counted() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_roll_back=False), [3, x, [torch.ones(2)]])
    assert notes([weakly_held(x)], overwritten=overwritten)


@pytest.mark.parametrize("inference", [False, True])
def test_what_is_kept_is_put_back_with_its_layout_and_count(inference: bool) -> None:
    with torch.inference_mode(inference):
        x, y = torch.ones(2, 3), torch.ones(2)
        overwritten = Overwritten(overwriting("exp_", can_roll_back=True), [3, x, [y]])
        y.zero_()
        x.t_().add_(1)
    revive(RuntimeError(), [], overwritten=overwritten)
    assert x.tolist() == torch.ones(2, 3).tolist() and y.tolist() == [1, 1]
    assert inference or (x._version, y._version) == (0, 0)


def test_what_is_kept_keeps_no_tensor_alive() -> None:
    x, y = torch.ones(2), torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_roll_back=True), [3, x, [y]])
    y.zero_()
    del x
    assert "already been freed" in notes([], overwritten=overwritten)[0] and y.tolist() == [0, 0]


def test_a_write_that_autograd_has_recorded_stays() -> None:
    x, y = torch.ones(2, requires_grad=True) * 1, torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_roll_back=True), [3, x, [y]])
    x.exp_()
    assert "autograd has recorded" in notes([], overwritten=overwritten)[0] and x[0] > 2


def test_nor_when_hooks_have_seen_what_was_saved() -> None:
    x = torch.ones(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert "hooks" in notes([weakly_held(x)])[0]


def test_random_numbers_are_drawn_again_and_their_state_is_no_tensor() -> None:
    torch.randn(1)  # normal numbers are drawn in pairs, and the generator keeps the second
    assert peak_bytes(random_states) == 0
    states = random_states()
    drawn = [torch.randn(3), torch.rand(2)]
    revive(RuntimeError(), [], random=states)
    assert all(map(torch.equal, drawn, [torch.randn(3), torch.rand(2)]))


def test_so_are_those_of_pythons_generators() -> None:
    first, second = random.Random(1), random.Random(2)
    states = states_of(first, second)
    drawn = first.gauss(0, 1), first.gauss(0, 1), second.random()
    revive(RuntimeError(), [], drawn=states)
    assert drawn == (first.gauss(0, 1), first.gauss(0, 1), second.random())
