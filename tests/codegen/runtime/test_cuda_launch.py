"""Kernel launches through the driver of a GPU, here a function of the tests."""

import ctypes
import struct
from types import SimpleNamespace

import pytest

from minidynamo.codegen.runtime import cuda_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec
from tests.codegen.offline import compile_offline

SOURCE = """@jit
def scaled(p_x, p_out, f_factor: "i64", n_rows: "i64", ROWS: tl.constexpr):
    f_factor = tl.cast(f_factor, tl.int64).to(tl.float64, bitcast=True)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(p_out + row, tl.load(p_x + row, row < n_rows) * f_factor.to(tl.float32), row < n_rows)
"""
POINTERS = (("p_x", "*fp32"), ("p_out", "*fp32"))
SPEC = LaunchSpec("scaled", POINTERS, 1000, 256, 0, 4, False, (("f_factor", "i64"), ("n_rows", "i64")))

BLOCKS = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
pytestmark = pytest.mark.cpp


@pytest.fixture(scope="module")
def kernel():
    """Has the attributes of a compiled, loaded Triton kernel that a launch needs."""
    ptx = compile_offline(SOURCE, SPEC, ("cuda", 90, 32))["ptx"]
    metadata = SimpleNamespace(num_warps=SPEC.warps, shared=512, target=SimpleNamespace(warp_size=32))
    signature = {**dict(POINTERS), "f_factor": "i64", "n_rows": "i64", "ROWS": "constexpr"}
    return SimpleNamespace(
        function=0x1234, metadata=metadata, asm={"ptx": ptx}, src=SimpleNamespace(signature=signature)
    )


class Driver:
    """Records the launch arguments of kernels."""

    def __init__(self, status=0):
        self.status, self.seen = status, []
        self.function = BLOCKS(self.start)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def start(self, function, *rest):
        *sizes, stream, parameters, extra = rest
        values = [ctypes.c_int64.from_address(parameters[k]).value for k in range(6)]
        self.seen.append((function, sizes, stream, values, extra))
        return self.status


def starter(kernel, driver, fallback=None):
    how = {"rows_per_block": 256, "pointers": 2, "reals": (True, False)}
    return cuda_launch.starter(kernel, **how, fallback=fallback, start=driver.address)


def test_what_the_driver_is_told(kernel):
    driver = Driver()
    starter(kernel, driver)(77, 1000, 0x1000, 0x2010, 0.5, 1000)
    (factor,) = struct.unpack("<q", struct.pack("<d", 0.5))
    # After its own parameters, Triton's kernel takes two pointers to memory that it does not use.
    assert driver.seen == [(0x1234, [4, 1, 1, 128, 1, 1, 512], 77, [0x1000, 0x2010, factor, 1000, 0, 0], None)]


def test_no_rows_start_nothing(kernel):
    driver = Driver()
    starter(kernel, driver)(0, 0, 0x1000, 0x2000, 0.5, 0)
    assert driver.seen == []


def test_addresses_between_multiples_of_16_go_elsewhere(kernel):
    driver, others = Driver(), []
    starter(kernel, driver, lambda *arguments: others.append(arguments))(0, 9, 0x1004, 0x2000, 0.5, 9)
    assert driver.seen == [] and others == [(0, 9, 0x1004, 0x2000, 0.5, 9)]


def test_errors(kernel):
    with pytest.raises(RuntimeError, match="CUDA error 700 when a kernel was started"):
        starter(kernel, Driver(700))(0, 9, 0x1000, 0x2000, 0.5, 9)
    with pytest.raises(RuntimeError, match="too few or too many"):
        starter(kernel, Driver())(0, 9, 0x1000, 0x2000)
    with pytest.raises(OverflowError):
        starter(kernel, Driver())(0, 9, 0x1000, 0x2000, 0.5, 2**70)
    with pytest.raises(RuntimeError, match="CUDA error 1 "):
        starter(kernel, Driver())(0, 2**40, 0x1000, 0x2000, 0.5, 9)


def changed(kernel, **fields):
    return SimpleNamespace(**{**vars(kernel), **fields})


@pytest.mark.parametrize("name", ["global_scratch_size", "launch_cooperative_grid"])
def test_unusual_kernels_are_left_to_triton(kernel, name):
    metadata = SimpleNamespace(**vars(kernel.metadata), **{name: 1})
    assert starter(changed(kernel, metadata=metadata), Driver()) is None


def test_kernels_whose_parameters_are_not_known_are_left_to_triton(kernel):
    assert starter(changed(kernel, asm={"amdgcn": ""}), Driver()) is None
    folded = SimpleNamespace(signature={**kernel.src.signature, "n_rows": "constexpr"})
    assert starter(changed(kernel, src=folded), Driver()) is None
