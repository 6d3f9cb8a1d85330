"""Launches of Triton kernels: interpreted whatever the environment variables say, and compiled without a GPU."""

from dataclasses import replace

import pytest
import torch

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec
from minidynamo.errors import BackendError
from tests.codegen.offline import TARGETS, check_offline, compile_offline

SOURCE = """@jit
def double(p_x, p_out, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(p_out + row, tl.load(p_x + row, row < 3000) * 2, row < 3000)
"""
SPEC = LaunchSpec("double", (("p_x", "*fp32"), ("p_out", "*fp32")), 3000, 256, 0, 4, False)


def test_interpreted_on_cpu_tensors():
    x, out = torch.randn(3000), torch.empty(3000)
    triton_launch.launchers(SOURCE, [SPEC], interpret=True)["double"](x, out)
    assert torch.equal(out, x * 2)


def test_nothing_is_started_for_no_rows():
    spec = LaunchSpec("double", SPEC.pointers, 0, 256, 0, 4, False)
    out = torch.full((3,), 7.0)
    triton_launch.launchers(SOURCE, [spec], interpret=True)["double"](out, out)
    assert out.tolist() == [7.0] * 3


def test_compiled_for_every_target_without_a_gpu():
    made = [check_offline(SOURCE, SPEC, target) for target in TARGETS]
    assert made == ["cubin", "cubin", "hsaco"]
    ptx = compile_offline(SOURCE, SPEC, ("cuda", 80, 32))["ptx"]
    assert "sm_80" in ptx


def test_arithmetic_is_not_contracted():
    source = SOURCE.replace("* 2,", "* 2 + 1,").replace("double", "contracted")
    spec = LaunchSpec("contracted", SPEC.pointers, 3000, 256, 0, 4, False)
    assert "fma" not in compile_offline(source, spec, ("cuda", 80, 32))["ptx"]


def test_without_triton_the_error_says_so(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(triton_launch.importlib, "import_module", missing)
    triton_launch.triton_modules.cache_clear()
    with pytest.raises(BackendError, match="Triton is not installed") as caught:
        triton_launch.triton_modules()
    assert caught.value.code == "MD504"


@pytest.mark.gpu
def test_on_a_gpu():
    spec = replace(SPEC, device=torch.device("cuda", 0))
    launch = triton_launch.launchers(SOURCE, [spec], interpret=False)["double"]
    assert type(launch).__name__ == "builtin_function_or_method"
    for start in (0, 1, 4, 2):
        x, out = torch.randn(3004, device="cuda")[start:], torch.empty(3004, device="cuda")[start:]
        launch(torch.cuda.current_stream().cuda_stream, 3000, x.data_ptr(), out.data_ptr())
        assert torch.equal(out[:3000], x[:3000] * 2)


def test_comments_change_no_key():
    commented = [SOURCE.replace("    tl.store", f"    # train.py:{n}: y = x * 2\n    tl.store") for n in (3, 14)]
    keys = {triton_launch._functions(text, [SPEC], interpret=False)["double"].cache_key for text in commented}
    assert len(keys) == 1


def test_numbers_have_the_type_that_is_written_and_are_not_looked_at():
    source = SOURCE.replace("p_out, ROWS", 'p_out, n: "i64", ROWS').replace("3000", "n")
    function = triton_launch._functions(source, [SPEC], interpret=False)["double"]
    number = function.params[2]
    assert number.annotation_type == "i64" and number.do_not_specialize
