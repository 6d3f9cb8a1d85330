"""Kernels are cut where fusion would raise the peak above the peak of separate operations."""

import torch

from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.loops import Kernel
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.memory.plan import Handing
from minidynamo.codegen.memory.report import memory_plan
from minidynamo.codegen.peak_splitting import Deaths, scheduled
from minidynamo.memory.unfused_peak import peaks_of_operations
from tests.codegen.graphs import trace

X = torch.rand(64, 64)
W = torch.rand(64, 64) / 64
SIZE = 4 * 64 * 64


def gates(x, w):
    """Both products die at one addition; the value computed from their sum is as large as each product."""
    total = x @ w + w @ x
    return total[:, :32].sin(), total[:, 32:].cos()


def planned(program, limit, handing_over=False, dying=(), returned=()):
    gm = trace(program, X, W)
    how = {
        "join": True,
        "verify": True,
        "handing_over": handing_over,
        "deaths": Deaths(frozenset(dying), frozenset(returned)),
    }
    return scheduled(lower_graph(gm), "graph", limit, **how)


def kernels(found):
    return [[buffer.name for buffer in step.writes] for step in found[1] if isinstance(step, Kernel)]


def peak(found, dying=()):
    """Counts new buffers and dying inputs; the caller owns the remaining inputs."""
    return memory_plan(found[2]).peak_with_inputs(dying)


def test_a_kernel_is_cut_behind_what_dies_in_it():
    fused, cut = planned(gates, lambda taken, held: 1 << 30), planned(gates, lambda taken, held: 0)
    assert kernels(fused) == [["sin", "cos"]] and kernels(cut) == [["add"], ["sin", "cos"]]
    assert peak(fused) == 3 * SIZE and peak(cut) == 2 * SIZE


def test_a_cut_that_does_not_help_is_not_made():
    def program(x, w):
        return (x @ w).sin().sum(0)

    assert kernels(planned(program, lambda taken, held: 0)) == kernels(planned(program, lambda taken, held: 1 << 30))


def products(x, w):
    """Both arguments die in one product; three results are computed from the product."""
    product = x.exp() * w
    return product.sin(), product.cos(), product.tanh()


def test_inputs_that_die_are_gone_for_the_second_half():
    dying = {"x_1", "w_1"}
    fused, cut = (planned(products, lambda taken, held, most=most: most, dying=dying) for most in (1 << 30, 0))
    assert kernels(fused) == [["sin", "cos", "tanh"]] and kernels(cut) == [["mul"], ["sin", "cos", "tanh"]]
    assert peak(fused, dying) == 5 * SIZE and peak(cut, dying) == 3 * SIZE
    assert kernels(planned(products, lambda taken, held: 0)) == kernels(fused)  # 2 and 2


def test_results_that_are_handed_over_do_not_hide_what_is_above():
    def program(x, w):
        return *gates(x, w), x @ x, w @ w

    limits = {False: 1 << 30, True: 2 * SIZE}
    assert kernels(planned(program, lambda taken, held: limits[taken])) == [["sin", "cos"]]
    assert kernels(planned(program, lambda taken, held: limits[taken], handing_over=Handing.IN_STEPS)) == [
        ["add"],
        ["sin", "cos"],
    ]


def test_results_of_which_none_is_read_for_another_get_kernels_of_their_own():
    def program(x, w):
        return x + w, w.cos(), w.tan()

    dying = {"x_1"}
    fused, cut = (planned(program, lambda taken, held, most=most: most, dying=dying) for most in (1 << 30, 0))
    assert kernels(fused) == [["add", "cos", "tan"]] and kernels(cut) == [["add"], ["cos", "tan"]]
    assert peak(fused, dying) == 4 * SIZE and peak(cut, dying) == 3 * SIZE


def test_results_that_are_handed_over_are_gone_for_the_second_half():
    def program(x, w):
        return x + w, x * w

    limits = {False: 1 << 30, True: SIZE}
    assert kernels(planned(program, lambda taken, held: limits[taken])) == [["add", "mul"]]
    assert kernels(planned(program, lambda taken, held: limits[taken], handing_over=Handing.IN_STEPS)) == [
        ["add"],
        ["mul"],
    ]


def test_nothing_is_cut_that_is_worse_where_results_of_forward_are_held():
    def program(x, w):
        return torch.where(x > 0, w, w.new_zeros(()))

    def kernels_with(most):
        limits = {False: 0, True: most}
        found = planned(program, lambda taken, held: limits[held], dying={"x_1", "w_1"}, returned={"x_1"})
        return kernels(found)

    assert kernels_with(2 * SIZE) == [["where"]]  # a mask would be held in addition
    assert kernels_with(3 * SIZE) == [["gt"], ["where"]]


def test_nothing_is_cut_for_a_few_bytes():
    above = {few: planned(gates, lambda taken, held, few=few: 3 * SIZE - few) for few in (4, 4 * SIZE)}
    assert [len(kernels(found)) for found in above.values()] == [1, 2]


def test_nothing_is_cut_where_the_operations_need_no_less():
    limit = peaks_of_operations(trace(gates, X, W))
    assert limit(False, False) == 3 * SIZE and kernels(planned(gates, limit)) == [["sin", "cos"]]


def test_a_row_is_folded_before_what_it_is_folded_from_can_be_in_the_way():
    def program(x, w):
        sums = (x @ w).sum(1)
        return sums.sin(), sums.cos(), sums.tanh()

    gm = trace(program, X, W)
    limit = peaks_of_operations(gm)
    found = planned(program, limit)
    assert kernels(found)[0] == ["sum_1"] and peak(found) == limit(False, False)
    for got, expected in zip(compile_graph(gm).call([X, W]), program(X, W)):
        torch.testing.assert_close(got, expected)


def kernels_for_a_gpu(function, *args):
    compiled = compile_graph(trace(function, *args), target="triton")
    return [[buffer.name for buffer in kernel.writes] for kernel in compiled.program.kernels]


def test_long_folds_are_torch_s_own_where_their_partial_results_would_raise_the_peak():
    x = torch.rand(2048, 512)
    assert kernels_for_a_gpu(lambda x: x.sum(0), x) == []
    # Eager allocates the elements, which are larger than the partial results.
    assert kernels_for_a_gpu(lambda x: x.exp().sum(0), x) == [["sum_1_partial"], ["sum_1"]]
    # Of several folds, only the folds at the peak are split.
    made = kernels_for_a_gpu(lambda x: (x.exp().sum(0), (y := x @ x.t()), y.sum(0)), x)
    assert made == [["sum_1_partial"], ["sum_1"]]
