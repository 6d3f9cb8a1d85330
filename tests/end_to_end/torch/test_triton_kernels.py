"""Programs that launch their own Triton kernels, under Triton's interpreter on CPU tensors."""

# The kernels keep the style of users: the interpreter resolves their names.

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter, assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, two_vectors, vector

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
interpreter = pytest.importorskip("triton.runtime.interpreter")

programs = Programs()
test_same_as_eager = programs.test()


# The result of `triton.jit` when TRITON_INTERPRET=1.
jit = interpreter.InterpretedFunction


@jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=inside) + tl.load(y_ptr + i, mask=inside), mask=inside)


@jit
def scale_kernel(x_ptr, factor, n, BLOCK: tl.constexpr = 4):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = x_ptr + i
    tl.store(at, tl.load(at, mask=i < n) * factor, mask=i < n)


@jit
def split_kernel(x_ptr, low_ptr, high_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(low_ptr + i, tl.where(x < 0, x, 0.0))
    tl.store(high_ptr + i, tl.where(x < 0, 0.0, x))


def add(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=4)
    return out


@programs(vector)
def writes_to_its_argument(x):
    scale_kernel[(1,)](x, 3.0, x.numel())
    return x + 1


@programs(vector)
def writes_to_a_view(x):
    y = x * 1
    scale_kernel[(1,)](y[1:3], 3.0, 2, BLOCK=2)
    return y


picks_block = triton.heuristics({"BLOCK": lambda args: 8 if args["n"] > 4 else 4})(add_kernel)


autotuned = triton.autotune([triton.Config({"BLOCK": 4})], key=["n"])(add_kernel)


@programs(two_vectors)
class Cases:
    between_other_operations = lambda x, y: add(x * 2, y).sin() + 1

    @programs(lambda: (leaf(), vector()))
    def gradients_do_not_pass_through_a_kernel(x, y):
        return add(x, y), x * add(x.detach(), y), add(x, y).requires_grad

    def a_plain_grid(x, y):
        out = torch.empty_like(x)
        add_kernel[(1,)](x, y, out, 4, BLOCK=4)
        add_kernel[1, 1](out, y, out_ptr=torch.empty(4), n=4, BLOCK=4)
        return out

    @programs(vector)
    def one_tensor_twice(x):
        add_kernel[(1,)](x, x, x, 4, BLOCK=4)
        return x * 2

    @programs(vector)
    def two_outputs(x):
        low, high = torch.empty_like(x), torch.empty_like(x)
        split_kernel[(1,)](x, low, high, BLOCK=4)
        return low - high

    @programs(vector)
    def nobody_reads_what_it_writes(x):
        scale_kernel[(1,)](x, 2.0, 4)

    @programs(lambda: leaf().double().detach())
    def in_a_loop(x):
        for factor in range(3):
            scale_kernel[(1,)](x, float(factor + 1), 4)
        return x

    @programs(
        two_vectors, breaks=1, graphs=3
    )  # the result of `kernel[grid]` is compiled separately, once for all calls
    def memory_that_two_arguments_share(x, y):
        z = x * 1
        add_kernel[(1,)](z[:2], y[:2], z[1:3], 2, BLOCK=2)
        return z + 1

    def heuristics_are_python(x, y):
        out = torch.empty_like(x)
        picks_block[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](x, y, out, 4)
        return out * 2

    @programs(two_vectors, graphs=2, breaks=2)
    def autotuned_kernels_run_as_written(x, y):
        x = x + 1
        out = torch.empty_like(x)
        autotuned[(1,)](x, y, out, 4)
        return out * 2

    @programs(vector, graphs=2, breaks=1)
    def a_grid_that_only_the_run_knows(x):
        y = x * 1
        scale_kernel[(int((x * 0).sum()) + 1,)](y, 2.0, 4)
        return y


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
def test_backends(backend):
    def program(x, y):
        y = y.sin()
        z = add(x * 2, y)
        scale_kernel[(1,)](y, 2.0, 4)
        return (z * x + y).cos()

    assert_same_as_eager(program, lambda: (leaf(), leaf()), backend=backend, graphs=1, breaks=0)
    assert_same_as_eager(writes_to_its_argument, vector, backend=backend, graphs=1, breaks=0)
    assert_same_as_eager(writes_to_a_view, vector, backend=backend, graphs=1, breaks=0)


def test_another_kernel_is_noticed():
    @jit
    def double_kernel(x_ptr):
        tl.store(x_ptr, tl.load(x_ptr) * 2)

    @jit
    def triple_kernel(x_ptr):
        tl.store(x_ptr, tl.load(x_ptr) * 3)

    kernels = [double_kernel]
    counter = CompileCounter()

    @minidynamo.compile(backend=counter)
    def program(x):
        kernels[0][(1,)](x)
        return x + 1

    assert program(torch.ones(1)).item() == 3
    kernels[0] = triple_kernel
    assert program(torch.ones(1)).item() == 4 and counter.frame_count == 2
    kernels[0] = double_kernel
    assert program(torch.ones(1)).item() == 3 and counter.frame_count == 2


def test_another_grid_and_another_number_are_noticed():
    size, factor = [(1,)], [2.0]

    def program(x):
        scale_kernel[size[0]](x, factor[0], 8)
        return x

    compiled = minidynamo.compile(program, backend="eager")
    for size[0], factor[0] in [((1,), 2.0), ((2,), 2.0), ((2,), 5.0), ((1,), 2.0)]:
        assert torch.equal(compiled(torch.ones(8)), program(torch.ones(8)))


def test_errors_of_a_launch_are_eagers():
    def program(x):
        scale_kernel[(1,)](x)
        return x

    with pytest.raises(TypeError, match="missing"):
        minidynamo.compile(program, backend="eager")(torch.ones(4))
