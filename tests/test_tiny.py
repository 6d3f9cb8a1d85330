"""The ten-second check: one program through every folder, forward and backward."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager


def program(x, weight):
    scale = {"factor": 2}["factor"]
    h = torch.relu(x @ weight) * scale
    return h.softmax(dim=-1), h.sum()


def inputs():
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp), "triton"])
def test_forward_and_backward_equal_eager(backend):
    assert_same_as_eager(program, inputs, backend=backend, calls=2, graphs=1, breaks=0, recompiles=0)


def test_a_compiled_function_is_a_plain_function_that_can_be_read():
    compiled = minidynamo.compile(program, backend="eager")
    compiled(*inputs())
    assert type(compiled) is type(program)
    assert compiled.__wrapped__ is program
    assert compiled.__name__ == "program"
    assert "x" in compiled.guards()
    assert "def " in compiled.code()
