"""Tests of minidynamo/tracer/capture/operator_order.py: behind which of the user's operators something is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from minidynamo.tracer.records.traced_frame import Taking, TracedFrame
from tests.tracer.capturing import capture


@torch.library.custom_op("test_takings::may_raise", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@own.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def three() -> list[torch.Tensor]:
    return [torch.ones(2) for _ in range(3)]


def numbers(traced: TracedFrame) -> list[int]:
    assert traced.graph is not None
    return [node.meta["user_location"].operator for node in traced.graph.graph.nodes if "time" in node.meta]


def test_calls_are_numbered_where_something_is_taken() -> None:
    def one_by_one(xs: list[torch.Tensor], *, takes: bool) -> torch.Tensor:
        h = torch.zeros(2)
        for k in range(3):
            h = own(h + (xs.pop(0) if takes else xs[k]))
        return h

    assert numbers(capture(lambda xs: one_by_one(xs, takes=True), three())) == [0, 0, 1, 0, 2, 0, 3]
    without = capture(lambda xs: one_by_one(xs, takes=False), three())
    assert numbers(without) == [0] * 7 and without.takings is None


def test_what_is_taken_from_a_list() -> None:
    def program(xs: list[torch.Tensor]) -> torch.Tensor:
        a = own(xs[0] + xs[1])
        xs[1] = None  # type: ignore[call-overload]
        a = own(xs[0] + a)
        b = own(a + xs.pop())
        del xs[0]
        return b

    takings = capture(program, three()).takings
    assert takings is not None and not takings.places
    (taken,) = takings.lists.values()
    assert taken == {1: Taking(1, False, True), 2: Taking(2, True, False), 0: Taking(3, True, True)}


def test_what_is_taken_from_elsewhere() -> None:
    def program(d: dict[str, torch.Tensor], o: Any) -> torch.Tensor:
        a = own(d.pop("a"))
        d["b"], b = None, own(d["b"] + a)  # type: ignore[assignment]
        x, o.x = o.x, None
        return own(b + x)

    class Box:
        x = torch.ones(2)

    box = Box()
    box.x = torch.ones(2)
    takings = capture(program, dict(zip("abc", three())), box).takings
    assert takings is not None and not takings.lists
    found = {place.key: taking for place, taking in takings.places.items()}
    assert found == {"a": Taking(0, True, False), "b": Taking(2, False, True), "x": Taking(2, False, False)}


@pytest.mark.parametrize(
    "change, is_known",
    [
        (lambda xs: xs.append(5), False),
        (lambda xs: xs.reverse(), False),
        (lambda xs: xs.__setitem__(0, 5), False),
        (lambda xs: xs.__setitem__(slice(1), [5]), False),
        (lambda xs: xs.__setitem__(slice(1), []), True),
        (lambda xs: xs.clear(), True),
    ],
)
def test_what_else_is_done_is_only_known_behind_the_last_call(change: Callable[[Any], Any], is_known: bool) -> None:
    def program(xs: list[torch.Tensor], *, early: bool) -> torch.Tensor:
        a = xs.pop()
        if early:
            change(xs)
        a = own(a)
        if not early:
            change(xs)
        return a

    assert (capture(lambda xs: program(xs, early=True), three()).takings is not None) is is_known
    assert capture(lambda xs: program(xs, early=False), three()).takings is not None


def test_elements_that_are_one_tensor_are_not_told_apart() -> None:
    x, y = three()[:2]
    assert capture(lambda xs: own(xs.pop(0) + xs.pop()), [x, y, x]).takings is None
    assert capture(lambda xs: own(xs.pop(0) + xs.pop()), [x, y, y.clone()]).takings is not None


def test_numbers_in_a_dict_are_not_put_back() -> None:
    def program(d: Any) -> torch.Tensor:
        a = d.pop("a")
        d.pop("n")
        return own(a)

    assert capture(program, {"a": torch.ones(2), "n": 3}).takings is None
