"""Kernels printed as C++: compiled, run, compared with torch."""

import pytest
import torch

from minidynamo.codegen.printers import cpp
from minidynamo.codegen.runtime import library
from tests.codegen.printers import printer_cases as kernels

pytestmark = pytest.mark.cpp

NAMES = list(kernels.cases())


def run(case: kernels.Case, entry: library.Entry) -> tuple[torch.Tensor, ...]:
    outputs = case.outputs()
    entry(*(t.data_ptr() for t in (*case.inputs, *outputs)))
    return outputs


def build(kernel) -> library.Entry:
    return library.load(cpp.print_kernels([kernel]), [cpp.entry_name(kernel)])[cpp.entry_name(kernel)]


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_torch(name):
    case = kernels.cases()[name]
    case.check(run(case, build(case.kernel)))
