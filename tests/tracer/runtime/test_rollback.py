"""Tests of minidynamo/tracer/runtime/rollback.py: what is held for a second run, and when it is too late for one."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.memory import peak_bytes
from minidynamo.compat import memory_of
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.tracer.graph.written_places import Writes, find_writes
from minidynamo.tracer.runtime.rollback import (
    HeldList,
    HeldPlace,
    HeldSlot,
    Overwritten,
    firmly_held,
    random_states,
    revive,
    states_of,
    weakly_held,
)


def notes(held: list[Any], lost: str = "", error: BaseException | None = None, **kept: Any) -> list[str]:
    """The notes on an error behind which the frame does not run again."""
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


def test_a_list_gets_all_elements_back_or_those_that_remain() -> None:
    items: list[object] = [torch.ones(1), torch.zeros(2), 3]
    taken = items[0]
    held = HeldList(items, (1, 2), weakly_held)
    items.clear()
    revive(RuntimeError(), [], taken=[held])
    assert len(items) == 3 and items[0] is taken
    del taken
    items.clear()
    assert "already been freed" in notes([], taken=[held])[0] and len(items) == 2


@pytest.mark.parametrize("number, left", [(0, [3]), (1, [2, 3, 4]), (2, [2, None, 4]), (3, [None, 4])])
def test_or_those_that_an_operator_found_there(number: int, left: list[float | None]) -> None:
    """The first is taken at once, another is replaced by None behind one call, and is held firmly, the next is taken
    behind two, and the last one behind all."""
    items: list[Any] = [torch.full((1,), float(k)) for k in (1, 2, 3, 4)]
    watched = [*map(weakly_held, items)]
    used = [items[1], items[3]]
    takings = {0: (0, True, False), 2: (1, False, True), 1: (2, True, False), 3: (3, True, False)}
    held = HeldList(items, (2,), weakly_held, takings)
    items.clear()
    assert [watch() is not None for watch in watched] == [False, True, True, True]
    held.refill(number)
    assert [item if item is None else item.item() for item in items] == left
    used.clear()


def test_a_place_is_left_as_an_operator_found_it() -> None:
    x = torch.ones(1)
    for number, there in ((1, True), (2, True), (3, False)):
        owner = {"x": x}
        HeldPlace(owner, "x", weakly_held, behind=2).refill(number)
        assert owner == ({"x": x} if there else {})


def test_an_error_of_a_numbered_operator_needs_no_second_run(tmp_path: Path) -> None:
    """Then nothing is lost, and no note says so."""
    text = "def call(x):\n    # operator 2 at train.py:3 in f: y = op(x)\n    x.fail()\n"
    with config.patch(debug_dir=str(tmp_path)):
        call = artifacts.load("host", "graph", text, {}, "call")
    for is_numbered in (True, False):
        owner = {"x": torch.ones(1)}
        held = HeldPlace(owner, "x", weakly_held, behind=2)
        try:
            call(None)
        except AttributeError as error:
            found = notes([], "lost", error, taken=[held], is_numbered=is_numbered)
        where = "Raised while computing\n  train.py:3 in f: y = op(x)"
        assert found == [where] if is_numbered else found[1:] == [where, "lost"]


class Slots:
    __slots__ = ("x",)


def filled_slots(x: torch.Tensor) -> Slots:
    made = Slots()
    made.x = x
    return made


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.parametrize("how, make", [(HeldPlace, lambda x: {"x": x}), (HeldSlot, filled_slots)])
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


def overwriting(operation: str, *, can_be_put_back: bool) -> Writes:
    """The writes of a graph that takes a number, a tensor and a list of one tensor, and writes to both tensors."""
    graph = torch.fx.Graph()
    graph.placeholder("number")
    x, ys = graph.placeholder("x"), graph.placeholder("ys")
    y = graph.call_function(operator.getitem, (ys, 0))
    fakes = {x: torch.empty(2), y: torch.empty(2)}
    for node, fake in fakes.items():
        graph.call_method(operation, (node,)).meta["written_memory"] = (memory_of(fake),)
    if can_be_put_back:
        graph.call_function(torch.linalg.cholesky, (x,))
    graph.output(())
    writes, _ = find_writes(torch.fx.GraphModule({}, graph), fakes, may_raise=can_be_put_back)
    assert writes is not None and writes.can_be_put_back is can_be_put_back
    return writes


@pytest.mark.parametrize("place", ["argument", "list"])
def test_nothing_runs_twice_behind_a_write_that_is_not_kept(place: str) -> None:
    x, y = torch.ones(2), torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_be_put_back=False), [3, x, [y]])
    held = [weakly_held(x), weakly_held(y)]
    values = revive(RuntimeError(), held, overwritten=overwritten)
    assert values is not None and values[1] is y
    (x if place == "argument" else y).add_(1)
    (note,) = notes(held, overwritten=overwritten)
    assert "written to" in note


def test_writes_to_inference_tensors_are_not_counted() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_be_put_back=False), [3, x, [torch.ones(2)]])
    assert notes([weakly_held(x)], overwritten=overwritten)


@pytest.mark.parametrize("inference", [False, True])
def test_what_is_kept_is_put_back_with_its_layout_and_count(inference: bool) -> None:
    with torch.inference_mode(inference):
        x, y = torch.ones(2, 3), torch.ones(2)
        overwritten = Overwritten(overwriting("exp_", can_be_put_back=True), [3, x, [y]])
        y.zero_()
        x.t_().add_(1)
    revive(RuntimeError(), [], overwritten=overwritten)
    assert x.tolist() == torch.ones(2, 3).tolist() and y.tolist() == [1, 1]
    assert inference or (x._version, y._version) == (0, 0)


def test_what_is_kept_keeps_no_tensor_alive() -> None:
    x, y = torch.ones(2), torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_be_put_back=True), [3, x, [y]])
    y.zero_()
    del x
    assert "already been freed" in notes([], overwritten=overwritten)[0] and y.tolist() == [0, 0]


def test_a_write_that_autograd_has_recorded_stays() -> None:
    x, y = torch.ones(2, requires_grad=True) * 1, torch.ones(2)
    overwritten = Overwritten(overwriting("exp_", can_be_put_back=True), [3, x, [y]])
    x.exp_()
    assert "autograd has recorded" in notes([], overwritten=overwritten)[0] and x[0] > 2


def test_nor_when_hooks_have_seen_what_was_saved() -> None:
    x = torch.ones(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert "hooks" in notes([weakly_held(x)])[0]


def test_random_numbers_are_drawn_again_and_their_state_is_no_tensor() -> None:
    torch.randn(1)  # normal numbers are drawn in pairs, of which the generator keeps one
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
