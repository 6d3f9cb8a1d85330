"""Kernels printed for Triton: interpreted and compared with torch, and compiled to machine code without a GPU."""

import pytest
import torch

from minidynamo.codegen.printers import triton
from minidynamo.codegen.runtime import triton_launch
from tests.codegen.printers import printer_cases as kernels

NAMES = list(kernels.cases())


def run(case: kernels.Case) -> tuple[torch.Tensor, ...]:
    spec = triton.launch_spec(case.kernel)
    source = triton.print_kernels([case.kernel])
    outputs = case.outputs()
    triton_launch.launchers(source, [spec], interpret=True)[spec.name](*case.inputs, *outputs)
    return outputs


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_torch_under_the_interpreter(name):
    case = kernels.cases()[name]
    case.check(run(case))


@pytest.mark.parametrize("name", NAMES)
def test_kernel_compiles_for_every_target(name):
    kernel = kernels.cases()[name].kernel
    made = triton_launch.check_offline(triton.print_kernels([kernel]), triton.launch_spec(kernel))
    assert made == ("cubin", "cubin", "hsaco")
