"""Nodes of a decomposed operation are marked in the traced graph, whatever else the program calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import minidynamo
from minidynamo.graph.decomposed import is_inside, marking
from minidynamo.graph.marks import PART_OF

LOGITS = torch.randn(3, 5)
GIVEN = torch.tensor([1, -100, 9])


def test_only_the_parts_note_their_call() -> None:
    (square,) = marking({torch.ops.aten.square.default: lambda x: x * x * 1}).values()
    gm = make_fx(lambda x: square(x + 1) + square(x) * x)(torch.ones(2))
    noted = [node.meta.get(PART_OF) for node in gm.graph.nodes if node.op == "call_function"]
    assert [call and call.operation for call in noted] == [None, *["square"] * 4, None, None]
    assert noted[1] == noted[2] != noted[3] == noted[4]
    assert torch.equal(square(torch.full((2,), 3.0)), torch.full((2,), 9.0))


def test_a_part_that_comes_apart_belongs_to_the_outer_call() -> None:
    (square,) = marking({torch.ops.aten.square.default: lambda x: x * x}).values()
    (cube,) = marking({torch.ops.aten.pow.Tensor_Scalar: lambda x: square(x) * x}).values()
    gm = make_fx(lambda x: cube(x).sin())(torch.ones(2))
    product, cubed, sine = (node for node in gm.graph.nodes if node.op == "call_function")
    assert product.meta[PART_OF].operation == "pow" and is_inside(product)
    assert not is_inside(cubed) and not is_inside(sine)


def own(x: Any, i: Any) -> Any:
    return x.gather(1, torch.where(i != -100, i, 0)[:, None])


def loss(x: Any, i: Any) -> Any:
    return F.nll_loss(x, i)


def loss_of_own(x: Any, i: Any) -> Any:
    return own(x, i.clamp(max=4)).sum() + loss(x, i)


@pytest.mark.cpp
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [own, loss, loss_of_own])
def test_an_error_has_the_words_of_what_the_program_called(program: Any, grad: bool) -> None:
    logits = LOGITS.clone().requires_grad_(grad)
    with pytest.raises((IndexError, RuntimeError)) as expected:
        program(logits, GIVEN)
    with pytest.raises(expected.type) as raised:
        minidynamo.compile(program, backend="native")(logits, GIVEN)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
