"""Kernels are cut where fusing them would raise the peak above that of the operations one by one."""

import dataclasses
import functools

import torch

from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.loops import Kernel
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.peaks import scheduled
from minidynamo.unfused_memory import peak_of_operations
from tests.codegen.graphs import trace

X = torch.rand(64, 64)
W = torch.rand(64, 64) / 64
SIZE = 4 * 64 * 64


def gates(x, w):
    """Both products die at one addition; what is computed of their sum is as large as one of them."""
    total = x @ w + w @ x
    return total[:, :32].sin(), total[:, 32:].cos()


def planned(program, limit):
    gm = trace(program, X, W)
    return scheduled(lower_graph(gm), "graph", limit, join=True, verify=True, handing_over=False)


def kernels(found):
    return [[buffer.name for buffer in step.writes] for step in found[1] if isinstance(step, Kernel)]


def peak(found):
    """Of what is made, inputs being their owners' business."""
    return dataclasses.replace(found[2], input_buffers={}).peak_bytes()


def test_a_kernel_is_cut_behind_what_dies_in_it():
    fused, cut = planned(gates, lambda: 1 << 30), planned(gates, lambda: 0)
    assert kernels(fused) == [["sin", "cos"]] and kernels(cut) == [["add"], ["sin", "cos"]]
    assert peak(fused) == 3 * SIZE and peak(cut) == 2 * SIZE


def test_a_cut_that_does_not_help_is_not_made():
    def program(x, w):
        return (x @ w).sin().sum(0)

    assert kernels(planned(program, lambda: 0)) == kernels(planned(program, lambda: 1 << 30))


def test_nothing_is_cut_where_the_operations_need_no_less():
    limit = functools.partial(peak_of_operations, trace(gates, X, W))
    assert limit() == 3 * SIZE and kernels(planned(gates, limit)) == [["sin", "cos"]]


def test_a_row_is_folded_before_what_it_is_folded_from_can_be_in_the_way():
    def program(x, w):
        sums = (x @ w).sum(1)
        return sums.sin(), sums.cos(), sums.tanh()

    gm = trace(program, X, W)
    found = planned(program, functools.partial(peak_of_operations, gm))
    assert kernels(found)[0] == ["sum_1"] and peak(found) == peak_of_operations(gm)
    for got, expected in zip(compile_graph(gm, [X, W]).call([X, W]), program(X, W)):
        torch.testing.assert_close(got, expected)
