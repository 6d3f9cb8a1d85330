"""The stage list of scheduling: kernels get names, and all results are verified."""

import dataclasses

import torch

from minidynamo.codegen.ir.loops import Extern, Kernel, Origin
from minidynamo.codegen.scheduling.schedule import kernel_name, optimize
from tests.codegen.graphs import lower, scheduled

X = torch.ones(8, 8)


def test_kernels_are_named_after_what_they_compute():
    steps = scheduled(lambda x: (x.softmax(1) @ x).relu() * 2, X)
    assert [s.name if isinstance(s, Kernel) else s.out for s in steps] == ["softmax_0", "mm", "relu_mul_2"]


def test_long_names_are_cut_between_operations():
    origins = tuple(Origin(k, op) for k, op in enumerate(["convolution_backward", "native_group_norm", *"abcdefgha"]))
    assert kernel_name(origins) == "convolution_backward_native_group_norm_a_b_c_d_e_and_3_more"
    assert kernel_name(()) == "kernel"


def test_names_are_distinct():
    names = [s.name for s in scheduled(lambda x: [(x + k).flip(0) @ x for k in range(3)], X) if isinstance(s, Kernel)]
    assert len(set(names)) == len(names)


def test_values_for_others_are_stored():
    kernel, call = scheduled(lambda x: (x + 1).exp() @ x, X)
    assert isinstance(kernel, Kernel) and isinstance(call, Extern)
    assert [b.name for b in kernel.writes] == ["exp"]


def test_optimize_without_joining_only_removes_and_splits():
    program = lower(lambda x: ((x + 1).exp(), x * 2), X)
    program = dataclasses.replace(program, outputs=program.outputs[:1])
    assert len(optimize(program, join=False).nodes) == 2
    assert len(optimize(program, join=True).nodes) == 1
