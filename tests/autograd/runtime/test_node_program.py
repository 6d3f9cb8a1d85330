"""Tests of minidynamo/autograd/runtime/node_program.py: the text of a graph's node, and how little a step runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.hooks import RemovableHandle

import minidynamo
from benchmarks.small import STEPS
from minidynamo.autograd.graph import hooks
from minidynamo.core import artifacts
from tests.autograd.programs import compile_program, inputs

HERE = str(Path(minidynamo.__file__).parent)


def calls_of_ours(step):
    """Counts the Python functions of minidynamo, and of the texts it generates, that a step runs."""
    found = []

    def count(frame, event, arg):
        path = frame.f_code.co_filename
        if event == "call" and (path.startswith(HERE) or str(artifacts.code_dir()) in path):
            found.append((Path(path).name, frame.f_code.co_name))

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.cpp
@pytest.mark.parametrize("name", STEPS)
def test_a_small_step_makes_at_most_60_calls(name, monkeypatch):
    monkeypatch.setattr(hooks._InternalHooks, "count", RemovableHandle.next_id)  # as if no test had registered hooks
    step = STEPS[name](minidynamo.compile)
    for _ in range(30):  # guards are machine code after some calls
        step()
    found = calls_of_ours(step)
    assert len(found) <= 60, found


def square(x, w):
    return (x @ w).sin() @ w


def node_text(program, args):
    with artifacts.collected() as texts:
        call = compile_program(program, args)
    (text,) = [text.text for text in texts if text.kind == "node"]
    return call, text


def test_the_text_names_what_is_saved_and_which_inputs_have_edges():
    x, w = inputs((4, 4), (4, 4))()[0]
    _, text = node_text(square, [x.detach(), w])
    assert "links = [args[1]]" in text
    assert "kept = [args[0], args[1]]" in text
    assert "unheld" not in text


def second_order(call, args):
    leaves = [arg.detach().clone().requires_grad_() for arg in args]
    (result,) = call(list(leaves))
    first = torch.autograd.grad(result.sum(), leaves, create_graph=True)
    return torch.autograd.grad(first[0].sin().sum(), leaves)


@pytest.mark.parametrize("rounds", [1, 3])
def test_usual_and_other_backwards_of_one_graph_agree(rounds):
    args = [arg.detach().double().requires_grad_() for arg in inputs((4, 4), (4, 4))()[0]]
    call, _ = node_text(lambda x, w: (square(x, w),), args)
    expected = torch.autograd.grad(square(*args).sum(), args)
    for _ in range(rounds):  # the first backward shows a layout, which later ones take from the text
        x, w = (arg.detach().clone().requires_grad_() for arg in args)
        (result,) = call([x, w])
        result.sum().backward()
        torch.testing.assert_close((x.grad, w.grad), expected)
    torch.testing.assert_close(second_order(call, args), second_order(lambda leaves: (square(*leaves),), args))
    x, w = (arg.detach().clone().requires_grad_() for arg in args)
    (result,) = call([x, w])
    (only,) = torch.autograd.grad(result.sum(), [w])
    torch.testing.assert_close(only, expected[1])


def test_a_second_backward_raises_as_in_eager():
    args = [arg.detach().requires_grad_() for arg in inputs((4, 4), (4, 4))()[0]]
    call, _ = node_text(lambda x, w: (square(x, w),), args)
    for _ in range(3):
        (result,) = call(list(args))
        loss = result.sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_other_layouts_of_a_gradient_after_the_usual_one():
    args = [arg.detach().requires_grad_() for arg in inputs((4, 4), (4, 4))()[0]]
    call, _ = node_text(lambda x, w: (square(x, w),), args)
    gradient = torch.randn(4, 4)
    special = [gradient, gradient.t().contiguous().t(), torch.randn(4, 1).expand(4, 4), torch._neg_view(gradient)]
    for given in [*special, *special]:
        expected = torch.autograd.grad(square(*args), args, given)
        (result,) = call(list(args))
        torch.testing.assert_close(torch.autograd.grad(result, args, given), expected)
