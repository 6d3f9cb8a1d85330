"""Kernels printed as C++: compiled, run, compared with torch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minidynamo.codegen.ir.loops import Loop
from minidynamo.codegen.printers import cpp
from minidynamo.codegen.runtime import library
from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.config import config
from tests.codegen.graphs import located_kernels
from tests.codegen.printers import printer_cases as kernels

pytestmark = pytest.mark.cpp

NAMES = list(kernels.cases())


def run(case: kernels.Case, entry: library.Entry) -> tuple[torch.Tensor, ...]:
    outputs = case.outputs()
    entry(*case.inputs, *outputs)
    return outputs


def build(kernel) -> library.Entry:
    return library.load(cpp.print_kernels([kernel]), [cpp.entry_name(kernel)])[cpp.entry_name(kernel)]


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_torch(name):
    case = kernels.cases()[name]
    case.check(run(case, build(case.kernel)))


@pytest.mark.parametrize("cols", [16, 100])
def test_loops_with_conditions_become_vectors(tmp_path, cols):
    """A loop that GCC does not vectorize takes up to fifty times as long."""
    toolchain = find_toolchain()
    if "clang" in toolchain.version or "avx2" not in toolchain.cpu.split():
        pytest.skip("asks GCC what it has made of loops that read some elements only: with masks")
    whole = kernels.masks(500, cols).kernel
    for store in whole.loops[0].body:
        kernel = replace(whole, loops=(Loop((), (store,)),))
        source = tmp_path / f"{store.buffer}.cpp"
        source.write_text(cpp.print_kernels([kernel]))
        verbose = replace(toolchain, flags=(*toolchain.flags, f"-fopt-info-vec-optimized={source}.log"))
        verbose.build(source, source.with_suffix(".so"))
        assert "loop vectorized" in Path(f"{source}.log").read_text(), store.buffer


def test_an_index_out_of_range_is_an_error():
    case = kernels.embedding(5, 3, 4)
    case.inputs[0][2] = 3
    with pytest.raises(IndexError, match="index out of range in self"):
        run(case, build(case.kernel))


def test_integer_division_by_zero_is_an_error():
    case = kernels.integers(20, torch.int32)
    case.inputs[1][7] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(case, build(case.kernel))


def test_one_tensor_may_be_read_and_written():
    case = kernels.chain(5000)
    x, y = case.inputs
    (expected,) = case.expected(x, y)
    x = x.clone()
    build(case.kernel)(x, y, x)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


def test_large_kernels_share_the_work_and_small_ones_do_not():
    assert "parallel_for" in cpp.print_kernels([kernels.chain(100_000).kernel])
    assert "parallel_for" not in cpp.print_kernels([kernels.chain(1000).kernel])
    with config.patch(min_parallel_elements=10, threads=3):
        assert "parallel_for(1000, 3," not in cpp.print_kernels([kernels.chain(1000).kernel])
        assert "parallel_for(33, 3," in cpp.print_kernels([kernels.softmax(33, 100).kernel])


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_result(threads):
    cases = [kernels.chain(100_000), kernels.softmax(64, 700), kernels.columns(3, 40, 700)]
    with config.patch(min_parallel_elements=1, threads=threads):
        for case in cases:
            case.check(run(case, build(case.kernel)))


def test_a_long_float_sum_is_accurate():
    case = kernels.full("sum", 4_000_000)
    (out,) = run(case, build(case.kernel))
    exact = case.inputs[0].double().sum()
    assert abs(out.double() - exact) <= 1e-6 * exact


def test_a_long_column_sum_is_accurate():
    case = kernels.columns(1, 40_000, 64)
    case.inputs[0].uniform_(0, 1)
    means = run(case, build(case.kernel))[0]
    exact = case.inputs[0].double().mean(1)
    assert ((means.double() - exact).abs() <= 1e-6 * exact).all()


def test_text_of_a_row_kernel(golden):
    golden(cpp.print_kernels([kernels.softmax(33, 100).kernel]), "codegen/softmax.cpp.txt")


def test_text_of_a_column_kernel(golden):
    golden(cpp.print_kernels([kernels.columns(2, 300, 70).kernel]), "codegen/columns.cpp.txt")


def test_text_of_a_pointwise_kernel(golden):
    golden(cpp.print_kernels([kernels.embedding(50, 20, 33).kernel]), "codegen/embedding.cpp.txt")


def test_text_with_lines_of_the_user(golden):
    text = cpp.print_kernels(located_kernels())
    golden(text, "codegen/located.cpp.txt")
    assert "somebody" not in text
