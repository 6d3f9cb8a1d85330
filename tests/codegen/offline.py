"""Compiles printed Triton kernels to machine code without a GPU."""

from __future__ import annotations

import functools
from typing import Any

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec

Target = tuple[str, int | str, int]

# The targets that every kernel must compile for: backend, architecture, threads per warp.
TARGETS: tuple[Target, ...] = (("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64))


def compile_offline(source: str, spec: LaunchSpec, target: Target) -> dict[str, Any]:
    """Returns Triton's artifacts by stage ("ptx", "cubin", "amdgcn", "hsaco", ...)."""
    import triton  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    constants = spec.constants(spec.row_block)
    numbers = dict.fromkeys((name for name, _ in spec.numbers), "i64")
    signature = {**dict(spec.pointers), **numbers, **dict.fromkeys(constants, "constexpr")}
    function = triton_launch._functions(source, [spec], interpret=False)[spec.name]
    source_of_kernel = ASTSource(fn=function, signature=signature, constexprs=constants)
    compiled = triton.compile(source_of_kernel, target=GPUTarget(*target), options=triton_launch._options(spec))
    return dict(compiled.asm)


@functools.cache
def check_offline(source: str, spec: LaunchSpec, target: Target) -> str:
    """Compiles a kernel once per content; returns the stage name of the machine code."""
    asm = compile_offline(source, spec, target)
    return next(stage for stage in asm if stage in ("cubin", "hsaco"))
