"""The functions that a tape writes."""

from __future__ import annotations

import pytest
import torch

from minidynamo import compat
from minidynamo.frontend.captured import backward as captured
from minidynamo.frontend.captured.tape import BackwardTape


@pytest.fixture
def written(monkeypatch):
    """The texts of the functions that tapes write during a test."""
    texts, load = [], BackwardTape._write

    def write(tape, returned):
        function = load(tape, returned)
        lines = __import__("inspect").getsource(function).splitlines()
        texts.append([line.strip() for line in lines if not line.strip().startswith("del ")])
        return function

    monkeypatch.setattr(BackwardTape, "_write", write)
    compat.forget_captured_backwards()
    return texts


def test_a_tape_empties_the_list_and_frees_values_after_their_last_use(written):
    x = torch.ones(2, requires_grad=True)
    with captured.captured_backward("eager"):
        x.sin().sum().backward()
    (lines,) = written
    assert lines == [
        "def backward(inputs, sizes, scalars, hooks, packed):",
        "i0, i1, = inputs",
        "inputs.clear()",
        "v0, = SumBackward0([i0], [True], [2])",
        "v1, = SinBackward0([v0], [True], i1)",
        "add_to_leaf(i1, v1, True)",
        "return []",
    ]


def test_sums_add_in_autograds_order_and_in_place(written):
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    with captured.captured_backward("eager"):
        (y.exp() + y.cos() + y.tan()).sum().backward()
    (lines,) = written
    sums = [line for line in lines if "add" in line and "=" in line and "AddBackward0" not in line]
    assert [line.partition(" = ")[2].partition("(")[0] for line in sums] == ["add_in_place", "add_in_place"]
    assert lines.index(sums[0]) > max(k for k, line in enumerate(lines) if "CosBackward0" in line)


def test_a_gradient_that_two_leaves_share_is_copied(written):
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with captured.captured_backward("eager"):
        (a + b).exp().sum().backward()
    (lines,) = written
    assert [line.endswith("True)") for line in lines if line.startswith("add_to_leaf")] == [False, True]
    assert a.grad.data_ptr() != b.grad.data_ptr()
