"""Tests of minidynamo/guards/tensors.py."""

import gc
import weakref
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch

from minidynamo.core.names import Namespace
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Local
from minidynamo.guards.tensors import attribute_checks, batched_checker, example, facts_of


class Sub(torch.Tensor):
    pass


BASE = torch.zeros(3, 4)
OTHERS: dict[str, Callable[[], object]] = {
    "dtype": lambda: torch.zeros(3, 4, dtype=torch.float64),
    "shape": lambda: torch.zeros(4, 3),
    "rank": lambda: torch.zeros(3, 4, 1),
    "strides": lambda: torch.zeros(4, 3).t(),
    "requires_grad": lambda: torch.zeros(3, 4, requires_grad=True),
    "device": lambda: torch.zeros(3, 4, device="meta"),
    "class": lambda: torch.nn.Parameter(torch.zeros(3, 4), requires_grad=False),
    "subclass": lambda: torch.zeros(3, 4).as_subclass(Sub),
    "negative bit": lambda: torch._neg_view(torch.zeros(3, 4)),
    "sparse": lambda: torch.zeros(3, 4).to_sparse(),
    "not a tensor": lambda: 3,
    "None": lambda: None,
}


def _by_attributes(tensor: torch.Tensor) -> Callable[[object], bool]:
    names = Namespace(["x"])
    text = " and ".join(attribute_checks(Reader(names), Local("x"), facts_of(tensor)))
    return lambda value: bool(eval(text, dict(names.values), {"x": value}))


def _batched(tensor: torch.Tensor) -> Callable[[object], bool]:
    check = batched_checker([facts_of(tensor)])
    assert check is not None
    return check


@pytest.mark.parametrize("make", [_by_attributes, _batched], ids=["attributes", "batched"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_tensor_that_differs_does_not_fit(
    make: Callable[[torch.Tensor], Callable[[object], bool]], other: str
) -> None:
    check = make(BASE)
    assert check(torch.ones(3, 4))
    assert not check(OTHERS[other]())


class Asked(torch.Tensor):
    asked: ClassVar[list[object]] = []

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        cls.asked.append(func)
        return super().__torch_function__(func, types, args, kwargs)


def test_facts_are_read_without_code_of_the_class() -> None:
    tensor = torch.zeros(3, 4).as_subclass(Asked)
    facts = facts_of(tensor)
    assert facts.cls is Asked and facts.shape == (3, 4)
    assert not Asked.asked


@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(torch.zeros(3)),
        torch.zeros(3, requires_grad=True) * 2,
        torch.zeros((), dtype=torch.int64),
        torch.zeros(2, 0, 3),
        torch.zeros(1, 4).expand(5, 4),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, device="meta"),
        torch.zeros(3).as_subclass(Sub),
    ],
    ids=lambda t: f"{type(t).__name__} {tuple(t.shape)}",
)
def test_examples_have_the_facts_but_no_memory(tensor: torch.Tensor) -> None:
    made = example(facts_of(tensor))
    assert made is not None
    assert facts_of(made) == facts_of(tensor)
    assert made.untyped_storage().nbytes() == 0
    assert _batched(tensor)(tensor)


def test_tensors_that_no_example_can_stand_for_are_checked_by_attributes() -> None:
    conjugate = torch.zeros(3, dtype=torch.complex64).conj()
    assert batched_checker([facts_of(conjugate)]) is None
    check = _by_attributes(conjugate)
    assert check(conjugate)
    assert not check(conjugate.resolve_conj())


def test_inference_tensors_and_modes_are_told_apart() -> None:
    with torch.inference_mode():
        inference = torch.zeros(3)
    assert _batched(inference)(inference)
    assert not _batched(inference)(torch.zeros(3))
    check = _batched(torch.zeros(3))
    with torch.inference_mode():
        assert not check(torch.zeros(3))


def test_autocast_is_noticed() -> None:
    check = _batched(torch.zeros(3))
    with torch.autocast("cpu"):
        assert not check(torch.zeros(3))


def test_requires_grad_counts_without_grad_mode_too() -> None:
    check = _batched(torch.zeros(3))
    with torch.no_grad():
        assert check(torch.zeros(3))
        assert not check(torch.zeros(3, requires_grad=True))


def test_a_checker_of_several_wants_each_in_its_place() -> None:
    check = batched_checker([facts_of(torch.zeros(3)), facts_of(torch.zeros(4))])
    assert check is not None
    assert check(torch.zeros(3), torch.zeros(4))
    assert not check(torch.zeros(4), torch.zeros(3))


def test_checkers_keep_no_tensor_alive() -> None:
    tensor = torch.nn.Parameter(torch.zeros(3))
    alive = weakref.ref(tensor)
    check = _batched(tensor)
    assert check(tensor)
    del tensor
    gc.collect()
    assert alive() is None


def test_summary_names_dtype_shape_and_device() -> None:
    assert facts_of(torch.zeros(2, 3)).summary == "float32[2, 3] on cpu"
    assert facts_of(torch.zeros((), dtype=torch.int64, device="meta")).summary == "int64[] on meta"
