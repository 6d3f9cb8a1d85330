"""Resizes that remain in a functional graph, and reads of freed memory in its backward."""

import pytest
import torch

from minidynamo.autograd.aot import aot_graphs
from minidynamo.errors import BackendError, GraphRefused
from minidynamo.graph.storage_resize import resize_storage
from tests.autograd.programs import graph_of

aten = torch.ops.aten


def graphs_of(program, *args):
    return aot_graphs(*graph_of(program, args))


def calls(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_memory_goes_behind_its_last_reader():
    def program(p):
        y = p * 2
        resize_storage(p, 0, False)
        return (y.sin().cos(),)

    assert calls(graphs_of(program, torch.ones(4)).forward)[:2] == [aten.mul.Tensor, resize_storage]


def test_memory_comes_before_anything_is_written_there():
    def program(p, q):
        made = q * 10
        resize_storage(p, 16, True)
        p.copy_(made)
        return (p + 1,)

    assert calls(graphs_of(program, torch.ones(4), torch.ones(4)).forward)[0] is resize_storage


def test_backward_reads_the_input_itself():
    def program(x, p, q):
        with torch.no_grad():
            resize_storage(p, 64, True)
            p.copy_(q)
        y = x @ p.t()
        resize_storage(p, 0, False)
        return (y,)

    graphs = graphs_of(program, torch.ones(4, 4, requires_grad=True), torch.ones(4, 4), torch.ones(4, 4))
    assert {aten.copy_.default, resize_storage}.isdisjoint(calls(graphs.forward))
    assert [node.op for node in graphs.partition.saved] == ["placeholder"]
    assert graphs.partition.sources == [("input", 1)]


def test_what_forward_computed_of_it_is_kept():
    def program(x, p):
        y = ((x * p) + 1) @ x
        resize_storage(p, 0, False)
        return (y,)

    graphs = graphs_of(program, torch.ones(4, 4, requires_grad=True), torch.ones(4, 4))
    readers = [node.target for node in graphs.backward.graph.nodes if node.op == "call_function"]
    assert readers.count(aten.mul.Tensor) == 1  # the gradient of x * p, and not x * p again


def read_too_early(p):
    resize_storage(p, 16, True)
    return (p + 1,)


def read_too_late(p):
    resize_storage(p, 0, False)
    return (p + 1,)


def written_too_late(p):
    resize_storage(p, 0, False)
    p.zero_()
    return (torch.ones(2),)


@pytest.mark.parametrize("program", [read_too_early, read_too_late, written_too_late])
def test_data_that_are_not_there(program):
    with pytest.raises(BackendError) as error:
        graphs_of(program, torch.ones(4, device="meta"))  # without data, a wrong read cannot crash
    assert error.value.code == "MD415"


def memory_of_a_result(p):
    y = p * 2
    resize_storage(y, 0, False)
    return (y,)


def a_view_of_what_is_gone(p):
    v = p.view(2, 2)
    resize_storage(p, 0, False)
    return (v, p.new_ones(1))


def written_for_autograd(p, x):
    p.mul_(x)
    resize_storage(p, 0, False)
    return (x * 2,)


@pytest.mark.parametrize("program", [memory_of_a_result, a_view_of_what_is_gone, written_for_autograd])
def test_what_is_refused(program):
    inputs = [torch.ones(4), torch.ones(4, requires_grad=True)][: program.__code__.co_argcount]
    with pytest.raises(GraphRefused) as error:
        graphs_of(program, *inputs)
    assert error.value.code == "MD402"
