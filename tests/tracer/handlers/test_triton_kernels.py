"""A launch of a compiled kernel is one node; tracing works even if the kernel cannot run here."""

from __future__ import annotations

import pytest
import torch

from minidynamo.graph.triton_launch import launch_kernel
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr = 4):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def copied(x, grid, **options):
    out = torch.empty_like(x)
    copy_kernel[grid](x, out, x.numel(), **options)
    return out


def test_one_node():
    traced = capture(lambda x: copied(x, (1,), num_warps=4), torch.ones(3))
    assert targets(traced) == [torch.empty_like, launch_kernel]
    node = next(node for node in traced.graph.graph.nodes if node.target is launch_kernel)
    assert node.args[0] == "copy_kernel" and len(node.args[1]) == len(node.args[2]) == 1


def test_a_grid_function_sees_defaults():
    seen = capture(lambda x: copied(x, lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)), torch.ones(3))
    assert targets(seen) == [torch.empty_like, launch_kernel]


@pytest.mark.parametrize("grid", [1, ("one",)])
def test_other_grids(grid):
    traced = capture(lambda x: copied(x, grid), torch.ones(3))
    assert isinstance(traced.exit, Break) or launch_kernel in targets(traced)


def test_arguments_that_are_no_values():
    def program(x, things):
        copy_kernel[(1,)](x, x * 1, things)

    traced = capture(program, torch.ones(3), iter([1]))
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == "MD207"
