"""Kernels printed for Triton: interpreted and compared with torch, and compiled to machine code without a GPU."""

import pytest
import torch

from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.printers import triton
from minidynamo.codegen.runtime import triton_launch
from tests.codegen.graphs import compare, located_kernels, trace, trace_symbolic
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


def test_an_index_out_of_range_is_an_error():
    case = kernels.embedding(5, 3, 4)
    case.inputs[0][2] = 3
    with pytest.raises(IndexError, match="out of range"):
        run(case)


def test_long_rows_are_read_in_pieces():
    case = kernels.full("argmax", 40_000)
    assert "for start in range" in triton.print_kernels([case.kernel])
    case.check(run(case))


def test_text_of_a_row_kernel(golden):
    golden(triton.print_kernels([kernels.softmax(33, 100).kernel]), "codegen/softmax.triton.txt")


def test_text_of_a_column_kernel(golden):
    golden(triton.print_kernels([kernels.columns(2, 300, 70).kernel]), "codegen/columns.triton.txt")


def test_text_with_lines_of_the_user(golden):
    golden(triton.print_kernels(located_kernels()), "codegen/located.triton.txt")


@pytest.mark.parametrize("make", [trace, trace_symbolic])
@pytest.mark.parametrize("target", [pytest.param("cpp", marks=pytest.mark.cpp), "triton"])
def test_offsets_and_numbers_beyond_32_bits(tmp_path, make, target):
    # A sparse file of zeros, which takes no disk space, provides the memory of a huge tensor.
    memory = torch.from_file(str(tmp_path / "memory"), shared=True, size=2**32, dtype=torch.uint8)
    x = memory.as_strided((32, 3), (2**27, 1))
    x.copy_(torch.arange(96).view(32, 3))

    def function(x):
        return x + 1, x.sum(0), torch.arange(0, 8 * 10**9, 10**9, device=x.device) + 1

    graph = make(function, x)
    compare(compile_graph(graph, target=target).call([x]), function(x), exact=True)
