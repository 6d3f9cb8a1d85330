"""Autocast, default dtype and device contexts inside compiled functions, at breaks, in errors, and as guards."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter, CompileCounterWithBackend, assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, vector

programs = Programs()
test_same_as_eager = programs.test()


def matrix():
    return torch.randn(3, 3)


def leaf_matrix():
    return torch.randn(3, 3, requires_grad=True)


def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    return y, y.dtype, x @ x


programs(matrix)(autocast_block)


@torch.autocast("cpu", dtype=torch.bfloat16)
def product_in_bfloat16(x):
    return x @ x


@programs(leaf_matrix)
def autocast_as_decorator(x):
    return product_in_bfloat16(x).float() * (x @ x)


def autocast_around_a_break(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        minidynamo.graph_break()
        z = x @ x
    return y, z, x @ x


programs(leaf_matrix, graphs=2, breaks=1)(autocast_around_a_break)


@programs(vector)
def default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return y, x + torch.ones(4), torch.get_default_dtype()


@programs(vector)
def device_block(x):
    with torch.device("meta"):
        y, default = torch.ones(3), torch.get_default_device()
    with torch.device("cpu"):
        z = torch.ones(3)
    return y, default, z, x + 1, torch.get_default_device()


@programs(vector, graphs=2, breaks=1)
def device_block_around_a_break(x):
    with torch.device("meta"):
        y = torch.ones(3)
        minidynamo.graph_break()
        z = torch.ones(2)
    return y, z, torch.ones(1)


def inference_inside(x):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * 3
        w = y + 1
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return y, z, w, modes, x * 4, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


programs(leaf)(inference_inside)


@torch.inference_mode()
def inferred(x):
    return x * 2


def leaf_twice(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x.reshape(2, 2) @ x.reshape(2, 2)).float()


@programs(matrix)
class Cases:
    def autocast_turned_off_inside(x):
        with torch.autocast("cpu"):
            y = x @ x
            with torch.amp.autocast(device_type="cpu", enabled=False):
                z = y.float() @ y.float()
            w = z @ z
        return y, z, w

    def questions_about_autocast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = (
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
                torch.is_autocast_cache_enabled(),
            )
        outside = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda")
        return inside, outside, x + 1

    @programs(vector, graphs=2, breaks=1)
    def default_dtype_at_a_break(x):
        torch.set_default_dtype(torch.float64)
        y = x + 1
        minidynamo.graph_break()
        z = torch.ones(3)
        torch.set_default_dtype(torch.float32)
        return y, z, torch.ones(2)

    @programs(leaf)
    def inference_as_decorator(x):
        return inferred(x), torch.inference_mode()(lambda y: y * 3)(x), x * 4

    @programs(leaf, graphs=2, breaks=2)
    def inference_around_a_break(x):
        with torch.inference_mode():
            y = x * 2
            minidynamo.graph_break()
            inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        return y, inside, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), x * 2

    @programs(vector)
    def questions_about_the_machine(x):
        cuda = torch.cuda.is_available(), torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
        return cuda, torch.get_num_threads(), torch.get_float32_matmul_precision(), x + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_tensors_made_in_inference_mode(backend):
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(lambda x: (x * 2, x.is_inference()), backend=counter)
    for _ in range(2):
        with torch.inference_mode():
            x = torch.randn(4)
            y, is_inference = compiled(x)
        assert torch.equal(y, x * 2) and is_inference and counter.frame_count == 1
    y, is_inference = compiled(torch.ones(4))
    assert not is_inference and not y.is_inference()


@pytest.mark.parametrize("fn", [default_dtype, device_block, device_block_around_a_break, inference_inside])
def test_defaults_are_those_of_the_place_in_a_traced_graph(fn):
    assert_same_as_eager(fn, leaf, backend="aot_eager", calls=2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", [autocast_block, autocast_around_a_break, autocast_as_decorator])
def test_autocast_with_gradients(fn, backend):
    # Casts of one tensor are shared or not, so that its gradients are rounded before or after their sum.
    exact = {} if backend == "eager" else {"rtol": 0.02, "atol": 0.02}
    assert_same_as_eager(fn, leaf_matrix, backend=backend, calls=2, **exact)


def test_autocast_of_the_caller_is_guarded():
    counter = CompileCounter()
    compiled = minidynamo.compile(lambda x: x @ x, backend=counter)
    x = matrix()
    for dtype, graphs in ((None, 1), (torch.bfloat16, 2), (torch.float16, 3), (None, 3)):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            assert compiled(x).dtype == (dtype or torch.float32)
        assert counter.frame_count == graphs


def test_settings_answered_at_capture_are_guarded():
    compiled = minidynamo.compile(lambda x: x + torch.get_num_threads(), backend="eager")
    before = torch.get_num_threads()
    x = torch.zeros(2)
    assert compiled(x)[0] == before
    try:
        torch.set_num_threads(before + 1)
        assert compiled(x)[0] == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_error_inside_a_block_leaves_it(backend):
    def fails(x, i):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), torch.no_grad():
            return (x @ x)[i]

    compiled = minidynamo.compile(fails, backend=backend)
    compiled(matrix(), torch.tensor([1]))
    with pytest.raises(IndexError):
        compiled(matrix(), torch.tensor([7]))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.ones(1).device.type == "cpu"


def test_a_break_in_the_middle_of_nested_blocks():
    def nested(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                y = x @ x
                minidynamo.graph_break()
                z = y @ x
            w = x @ x
        return y, z, w, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()

    assert_same_as_eager(nested, leaf_matrix, graphs=2, breaks=1)
    assert_same_as_eager(leaf_twice, leaf, graphs=1, breaks=0)
