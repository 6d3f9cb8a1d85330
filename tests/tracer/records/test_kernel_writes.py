"""The arguments that a kernel writes to, read from its source."""

from __future__ import annotations

import pytest

from minidynamo.tracer.records.kernel_writes import written_arguments

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
store = tl.store


def plain(x_ptr, out_ptr, n):
    i = tl.arange(0, 4)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n))


def through_names(x_ptr, out_ptr):
    there = 0
    for _ in range(2):
        here = there + 1
        there = out_ptr + here
    store(pointer=here, value=tl.load(x_ptr))


def places_that_are_loaded(index_ptr, out_ptr, value):
    tl.store(out_ptr + tl.load(index_ptr), value)


def atomics(x_ptr, count_ptr):
    tl.atomic_add(count_ptr, 1.0)
    tl.atomic_max(x_ptr + tl.program_id(0), 2)


def block_pointers(x_ptr, out_ptr):
    block = tl.make_block_ptr(out_ptr, (4,), (1,), (0,), (4,), (0,))
    block = tl.advance(block, (4,))
    tl.store(block, tl.load(x_ptr))


def descriptors(x_ptr, out_ptr):
    made = tl.make_tensor_descriptor(out_ptr, [4], [1], [4])
    made.store([0], tl.load(x_ptr))


def either(x_ptr, y_ptr, out_ptr):
    p, _ = (x_ptr, y_ptr) if tl.program_id(0) == 0 else (out_ptr, out_ptr)
    tl.store(p, 1)


def unpacked(out_ptr, x_ptr):
    if (p := out_ptr) is not None:
        tl.store(*[p, 1])


@triton.jit
def read_one(pointer, i):
    return tl.load(pointer + i)


@triton.jit
def write_one(i, pointer, value):
    tl.store(pointer + i, value)


def device_functions(x_ptr, out_ptr, n):
    x = read_one(x_ptr, n)
    write_one(0, value=x, pointer=out_ptr)


def unknown_function(x_ptr, out_ptr, n, function):
    function(x_ptr, out_ptr)


def assembly(x_ptr, out_ptr):
    tl.inline_asm_elementwise("", "", [x_ptr], tl.int32, True, 1)


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (plain, "out_ptr"),
        (through_names, "out_ptr"),
        (places_that_are_loaded, "out_ptr"),
        (atomics, "x_ptr count_ptr"),
        (block_pointers, "out_ptr"),
        (descriptors, "out_ptr"),
        (either, "x_ptr y_ptr out_ptr"),
        (unpacked, "out_ptr"),
        (device_functions, "out_ptr"),
        (unknown_function, "x_ptr out_ptr"),
        (assembly, "x_ptr"),
    ],
)
def test_written_arguments(kernel, written):
    assert written_arguments(kernel) == set(written.split())


def test_without_source_everything_is_written():
    namespace = {"tl": tl}
    exec("def kernel(x_ptr, out_ptr): tl.store(out_ptr, 1)", namespace)
    assert written_arguments(namespace["kernel"]) == {"x_ptr", "out_ptr"}


def test_source_that_is_not_the_functions_own(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text("def kernel(x_ptr, out_ptr): tl.store(x_ptr, 1)")
    namespace = {"tl": tl}
    exec(compile("def kernel(x_ptr, out_ptr): tl.store(out_ptr, 1)", path, "exec"), namespace)
    assert written_arguments(namespace["kernel"]) == {"x_ptr", "out_ptr"}
    exec(compile(path.read_text(), path, "exec"), namespace)
    assert written_arguments(namespace["kernel"]) == {"x_ptr"}


@triton.jit
def recursive(pointer, n):
    tl.store(pointer, 1)
    recursive(pointer, n)


def test_functions_that_call_themselves():
    assert written_arguments(recursive.fn) == {"pointer"}
