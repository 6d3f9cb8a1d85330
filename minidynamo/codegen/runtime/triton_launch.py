"""Owns launching printed Triton kernels: on a GPU, or interpreted on CPU tensors.

Kernels are printed elsewhere. Triton is imported on first use.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import os
import re
import struct
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.size import Extent, Number, evaluate
from minidynamo.codegen.runtime import cuda_launch
from minidynamo.core import artifacts
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, KernelBuildError, ToolchainMissing

INTERPRETER_TILE = 1 << 16
"""Elements per program under the interpreter, where a program costs milliseconds and an element almost nothing."""

CPU = torch.device("cpu")

POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
"""dtype -> pointer type in Triton's notation."""

TENSORS = {notation: dtype for dtype, notation in POINTERS.items()}


@record(frozen=True)
class LaunchSpec:
    """The launch parameters of a kernel: a program per `row_block` rows, each over `column_block` columns at a time."""

    #: The name of the kernel.
    name: str
    #: (parameter, pointer type in Triton's notation) per tensor.
    pointers: tuple[tuple[str, str], ...]
    #: The number of rows.
    rows: Extent
    #: Rows per program.
    row_block: int
    #: Columns per tile; 0 for a kernel without columns.
    column_block: int
    #: Warps per program.
    warps: int
    #: Whether the kernel is compiled with its assertions.
    checked: bool
    #: (parameter, number) per number, passed after the tensors. Each is passed as an int64, a float by its bits.
    numbers: tuple[tuple[str, Number | Scalar], ...] = ()
    #: The device to launch on.
    device: torch.device = CPU

    def constants(self, row_block: int) -> dict[str, int]:
        """Returns the compile-time arguments."""
        return {"ROWS": row_block, "COLUMNS": self.column_block} if self.column_block else {"ROWS": row_block}


@record(frozen=True)
class Triton:
    """The modules of Triton in use."""

    language: types.ModuleType
    libdevice: types.ModuleType
    jit: types.ModuleType
    interpreter: types.ModuleType


@functools.cache
def triton_modules() -> Triton:
    """Returns Triton's modules. Raises ToolchainMissing (MD504), with the command to install Triton, if they are
    missing."""
    names = (".language", ".language.extra.libdevice", ".runtime.jit", ".runtime.interpreter")
    try:
        return Triton(*(importlib.import_module(f"triton{n}") for n in names))
    except ImportError as error:
        why = f"Triton kernels need the package: {error}"
        fix = "Run pip install triton, or use backend='cpp' for CPU tensors."
        raise ToolchainMissing(Diagnostic("MD504", "Triton is not installed", why=why, fix=fix)) from error


@functools.cache
def _environment(interpret: bool) -> types.MappingProxyType[str, Any]:
    """Returns the globals of kernel sources, for the GPU or for the interpreter."""
    modules = triton_modules()
    prelude = importlib.import_module("minidynamo.codegen.runtime.triton_prelude")
    names: dict[str, Any] = {"tl": modules.language, "libdevice": modules.libdevice}
    jit = modules.interpreter.InterpretedFunction if interpret else modules.jit.JITFunction
    names["jit"] = jit if interpret else functools.partial(_jit, jit)
    replaced: dict[str, Any] = {}
    if interpret:
        interpreted = importlib.import_module("minidynamo.codegen.runtime.triton_interpreter")
        names["libdevice"] = interpreted.Libdevice()
        replaced = {name: getattr(interpreted, name) for name in interpreted.REPLACED}
    for name, function in vars(prelude).items():
        if isinstance(function, types.FunctionType) and function.__module__ == prelude.__name__:
            own = types.FunctionType(function.__code__, names, name)
            own.__module__, own.__annotations__ = prelude.__name__, function.__annotations__
            names[name] = replaced.get(name) or jit(own)
    return types.MappingProxyType(names)


def _jit(jit: Callable[..., Any], function: types.FunctionType) -> Any:
    """Returns Triton's function for a kernel, compiled once for all values of its numbers."""
    numbers = [name for name, kind in function.__annotations__.items() if kind == "i64"]
    return jit(function, do_not_specialize=numbers) if numbers else jit(function)


def _functions(source: str, specs: Sequence[LaunchSpec], *, interpret: bool, path: str | None = None) -> dict[str, Any]:
    """Returns Triton's functions for the kernels in a file."""
    namespace = dict(_environment(interpret))
    # Triton reads a kernel's source through its file name, and its cache key contains the source and the module's name.
    key = hashlib.blake2b(_blank_comments(source).encode(), digest_size=8).hexdigest()
    namespace["__name__"] = f"minidynamo_kernels_{key}"
    artifacts.execute(path or artifacts.write("kernel", specs[0].name, source), source, namespace)
    functions = {spec.name: namespace[spec.name] for spec in specs}
    if not interpret:
        for function in functions.values():
            function._unsafe_update_src(_blank_comments(function.src))
    return functions


def _blank_comments(source: str) -> str:
    """Returns `source` with empty lines for comments: line numbers stay, and the user's lines do not change the key."""
    return re.sub(r"^[ ]*#.*$", "", source, flags=re.MULTILINE)


def launchers(
    source: str, specs: Sequence[LaunchSpec], *, interpret: bool, path: str | None = None
) -> dict[str, Callable[..., None]]:
    """Returns a launching function per kernel. `path` is the file with `source`; None writes a file.

    With `interpret` the function takes CPU tensors, then numbers, and runs at once under Triton's interpreter, whatever
    TRITON_INTERPRET says. Otherwise it takes the stream, the number of rows, the addresses of tensors, then numbers.
    Raises KernelBuildError (MD502) for a kernel that does not compile or does not fit the GPU.
    """
    functions = _functions(source, specs, interpret=interpret, path=path)
    if not interpret:
        return _compiled(functions, specs)
    return {spec.name: _interpreted(functions[spec.name], spec) for spec in specs}


@record(frozen=True)
class _At:
    """A tensor for Triton with a known address and dtype only."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def _compiled(functions: Mapping[str, Any], specs: Sequence[LaunchSpec]) -> dict[str, Callable[..., None]]:
    """Returns launchers for a GPU.

    All kernels are compiled here, in parallel, for tensors at multiples of 16 bytes, as nearly all are. For other
    addresses Triton compiles at the launch.
    """
    torch.cuda.current_device()  # initializes CUDA, which Triton queries once
    with futures.ThreadPoolExecutor(max_workers=min(len(specs), os.cpu_count() or 1)) as pool:
        compiled = list(pool.map(lambda spec: _compiled_one(functions[spec.name], spec), specs))
    return {spec.name: _launcher(functions[spec.name], spec, kernel) for spec, kernel in zip(specs, compiled)}


def _options(spec: LaunchSpec) -> dict[str, Any]:
    return {"num_warps": spec.warps, "enable_fp_fusion": False, "debug": spec.checked}


def _compiled_one(function: Any, spec: LaunchSpec) -> Any:
    tensors = [TENSORS[kind] for _, kind in spec.pointers]
    numbers = [0 for _ in spec.numbers]  # their types are annotated, so their values make no difference
    with torch.cuda.device(spec.device):
        try:
            return function.warmup(*tensors, *numbers, grid=(1,), **spec.constants(spec.row_block), **_options(spec))
        except Exception as error:
            raise _build_failure(spec, f"does not compile for {torch.cuda.get_device_name()}", error) from error


def _launcher(function: Any, spec: LaunchSpec, kernel: Any) -> Callable[..., None]:
    """Returns a function that takes the stream, the number of rows, the addresses of tensors, and numbers."""
    fallback = functools.partial(_launch_by_triton, function, spec)
    with torch.cuda.device(spec.device):
        try:
            kernel.run  # noqa: B018  # this loads it
        except Exception as error:
            raise _build_failure(spec, f"does not fit {torch.cuda.get_device_name()}", error) from error
    reals = tuple(isinstance(number, Scalar) for _, number in spec.numbers)
    start = cuda_launch.starter(
        kernel, rows_per_block=spec.row_block, pointers=len(spec.pointers), reals=reals, fallback=fallback
    )
    return fallback if start is None else start if torch.cuda.device_count() == 1 else _on_device(spec.device, start)


def _build_failure(spec: LaunchSpec, what: str, error: Exception) -> KernelBuildError:
    return KernelBuildError(Diagnostic("MD502", f"the Triton kernel `{spec.name}` {what}", why=str(error)))


def _on_device(device: torch.device, start: Callable[..., None]) -> Callable[..., None]:
    def launch(*arguments: Any) -> None:
        with torch.cuda.device(device):
            start(*arguments)

    return launch


def _launch_by_triton(function: Any, spec: LaunchSpec, stream: int, rows: int, *arguments: Any) -> None:
    """Launches like the function of `_launcher`, for any addresses: Triton selects the compiled form for them, and
    launches on the current stream."""
    if rows <= 0:
        return
    pointers = len(spec.pointers)
    tensors = [_At(address, TENSORS[kind]) for (_, kind), address in zip(spec.pointers, arguments)]
    numbers = (_bits(number, value) for (_, number), value in zip(spec.numbers, arguments[pointers:]))
    with torch.cuda.device(spec.device):
        grid = (math.ceil(rows / spec.row_block),)
        function[grid](*tensors, *numbers, **spec.constants(spec.row_block), **_options(spec))


def _interpreted(function: Any, spec: LaunchSpec) -> Callable[..., None]:
    rows_per_program = max(spec.row_block, INTERPRETER_TILE // max(spec.column_block, 1))
    interpreted = importlib.import_module("minidynamo.codegen.runtime.triton_interpreter")

    def launch(*arguments: Any) -> None:
        arguments, rows = _with_numbers(arguments, spec)
        block = min(rows_per_program, 1 << max(rows - 1, 0).bit_length())
        if rows > 0:
            interpreted.run(function[(math.ceil(rows / block),)], arguments, spec.constants(block))

    return launch


def _with_numbers(arguments: tuple[Any, ...], spec: LaunchSpec) -> tuple[tuple[Any, ...], int]:
    """Returns the arguments of a kernel, and its number of rows."""
    values = dict(zip((number for _, number in spec.numbers), arguments[len(spec.pointers) :]))
    rows = evaluate(spec.rows, {number: value for number, value in values.items() if not isinstance(number, Scalar)})
    bits = (_bits(number, value) for number, value in values.items())
    return (*arguments[: len(spec.pointers)], *bits), rows


def _bits(number: Number | Scalar, value: Any) -> Any:
    """Returns a number as it is passed: an int64."""
    return struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(number, Scalar) else value
