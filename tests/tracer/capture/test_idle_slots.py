"""Tests of minidynamo/tracer/capture/idle_slots.py: tensors that must outlive their last use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tracer.capturing import capture


@torch.library.custom_op("test_idle_slots::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@own.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def three() -> list[torch.Tensor]:
    return [torch.ones(2) for _ in range(3)]


def test_a_popped_element_is_idle_if_an_operator_is_called_after_its_last_use() -> None:
    def program(xs: list[torch.Tensor]) -> torch.Tensor:
        a = own(xs[0] + xs[1])
        del xs[1]  # read before `own`
        b = own(a + xs.pop())  # popped before `own`
        del xs[0]
        return b

    idle = capture(program, three()).idle_slots
    assert idle is not None and not idle.others
    assert [*idle.lists.values()] == [{0, 1}]


def test_so_is_a_slot_of_a_dict_or_an_object() -> None:
    class Box:
        x = torch.ones(2)

    def program(d: dict[str, torch.Tensor], o: Any) -> torch.Tensor:
        a = own(d.pop("a"))
        b = own(d["b"] + a)
        del d["b"]
        x, o.x = o.x, None
        return own(b + x)

    box = Box()
    box.x = torch.ones(2)
    traced = capture(program, {"a": torch.ones(2), "b": torch.ones(2)}, box)
    assert traced.idle_slots is not None
    assert [slot.key for slot in traced.idle_slots.others] == ["b"] and len(traced.early_clears) == 3


@pytest.mark.parametrize(("appends_late", "known"), [(True, True), (False, False)])
def test_other_changes_are_unknown_to_a_later_operator(appends_late: bool, known: bool) -> None:
    def program(xs: list[torch.Tensor]) -> torch.Tensor:
        a = xs.pop()
        if not appends_late:
            xs.append(a + 1)
        a = own(a)
        if appends_late:
            xs.append(a)
        return a

    assert (capture(program, three()).idle_slots is not None) == known
