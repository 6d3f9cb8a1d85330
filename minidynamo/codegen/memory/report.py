"""Owns the readable description of a host program's memory: bytes, birth, death and reuse of each buffer.

No decision is made here: `planner.py` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from minidynamo.codegen.ir.loops import Buffer, Extern, GetItem, Name, Origins
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, HostProgram, Launch, Overwrite, Reuse
from minidynamo.errors import UserLocation
from minidynamo.memory.plan import MemoryPlan, PlanRecorder
from minidynamo.memory.workspace import Operand, workspace


def memory_plan(program: HostProgram) -> MemoryPlan:
    """Returns the memory plan of a host program. Symbolic sizes count with their values of the traced call."""
    recorder = PlanRecorder(program.name)
    kernels = {buffer.name: kernel for kernel in program.kernels for buffer in kernel.writes}
    buffers = dict(program.input_buffers)
    for name in program.inputs:
        if name in program.input_buffers:
            recorder.make(name, hint(program.input_buffers[name].nbytes))
    for step in program.steps:
        match step:
            case Allocate() | Reuse():
                buffers[step.buffer.name] = step.buffer
                kernel = kernels.get(step.buffer.name)
                recorder.step(f"{'reuse' if isinstance(step, Reuse) else 'allocate'} {step.buffer.name}")
                operations = _operations(kernel.origins if kernel else ())
                source = step.source if isinstance(step, Reuse) else ""
                recorder.make(step.buffer.name, hint(step.buffer.nbytes), *operations, reuses=source)
            case Overwrite():
                recorder.view(step.buffer.name, step.source)
            case Launch():
                recorder.step(f"kernel {step.kernel.name}")
            case Extern() | GetItem():
                recorder.step(str(step.op) if isinstance(step, Extern) else f"item of {step.source}")
                if isinstance(step, Extern) and step.is_in_place:
                    continue
                if step.aliases:
                    recorder.view(step.out, step.aliases[0])
                elif step.layout is not None:
                    recorder.make(step.out, hint(step.layout.nbytes), *_operations(step.origins))
                elif isinstance(step, Extern) and step.unused:
                    unused = sum(hint(buffer.nbytes) for buffer in step.unused)
                    recorder.make(step.out, unused, *_operations(step.origins))
                if isinstance(step, Extern):
                    recorder.add_workspace(step.out, _workspace_of(step, buffers), *_operations(step.origins))
                if step.layout is not None:
                    buffers[step.out] = step.layout
            case Free():
                recorder.free(step.names)
            case HandOver():
                recorder.hand_over(step.name)
    return recorder.plan()


def _workspace_of(call: Extern, buffers: Mapping[str, Buffer]) -> int:
    """Returns the workspace of a call in bytes. `buffers` are the existing tensors by name."""
    args = [_operand(buffers.get(arg.name)) if isinstance(arg, Name) else arg for arg in call.args]
    results = [] if call.layout is None else [_operand(call.layout)]
    return getattr(call.op, "inside", 0) or workspace(
        call.op, args, [operand for operand in results if operand is not None]
    )


def _operand(buffer: Buffer | None) -> Operand | None:
    if buffer is None:
        return None
    shape, stride = (tuple(map(hint, sizes)) for sizes in (buffer.shape, buffer.stride))
    return Operand(shape, stride, buffer.dtype, buffer.device)


def _operations(origins: Origins) -> tuple[str, UserLocation | None]:
    """Returns the operations that compute a buffer, and the first user line among them."""
    names = ", ".join(dict.fromkeys(origin.op for origin in origins))
    return names, next((origin.where for origin in origins if origin.where is not None), None)
