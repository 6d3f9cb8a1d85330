"""Tests of minidynamo/autograd/runtime/rebuild_outputs.py."""

import pytest
import torch

import minidynamo

LISTS = [
    lambda x: x.chunk(2),
    lambda x: x.unbind(0),
    lambda x: x.split([3, 5]),
    lambda x: x[:, 2:].chunk(2)[1].unbind(0),
    lambda x: (x * 2).chunk(2),
]


@pytest.mark.parametrize("program", LISTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_the_parts_of_one_list_are_joined(program, dynamic):
    def peak(function):
        def backward():
            found.extend(torch.autograd.grad(parts, x, gradients))

        x, found = torch.ones(8, 4096, requires_grad=True), []
        parts = function(x)
        assert len({part.grad_fn for part in parts}) == 1
        gradients = [torch.full_like(part, number) for number, part in enumerate(parts)]
        return minidynamo.observe.memory_timeline.record_memory(backward).peak, found[0]

    compiled = minidynamo.compile(program, backend="aot_eager", dynamic=dynamic)
    compiled(torch.ones(8, 4096, requires_grad=True))[0].sum().backward()
    expected, actual = peak(program), peak(compiled)
    assert actual[0] <= expected[0] + 64 and torch.equal(actual[1], expected[1])


def test_a_part_that_is_taken_twice_is_two_tensors():
    def program(x):
        return x.chunk(2)[0], x.chunk(2)[0], x.chunk(2)[1].detach(), x.chunk(2)[1]

    minidynamo.testing.assert_same_as_eager(program, lambda: torch.ones(8, requires_grad=True), backend="aot_eager")
