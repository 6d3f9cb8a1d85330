"""Owns the description of a host program's memory for readers: each buffer's bytes, birth, death and reuse.

It decides nothing; the planner has.
"""

from __future__ import annotations

from collections.abc import Mapping

from minidynamo.codegen.ir.loops import Buffer, Extern, GetItem, Name, Origins
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, HostProgram, Launch, Place, Reuse
from minidynamo.errors import UserLocation
from minidynamo.memory.plan import MemoryPlan, PlanRecorder
from minidynamo.memory.workspace import Operand, workspace


def memory_plan(program: HostProgram) -> MemoryPlan:
    """The plan of a host program. Sizes of run time are taken to be what they were when the graph was traced."""
    recorder = PlanRecorder(program.name)
    makers = {buffer.name: step for step in program.steps if isinstance(step, Launch) for buffer in step.kernel.writes}
    buffers = dict(program.input_buffers)
    for name in program.inputs:
        if name in program.input_buffers:
            recorder.make(name, hint(program.input_buffers[name].nbytes))
    for step in program.steps:
        match step:
            case Allocate() | Reuse():
                buffers[step.buffer.name] = step.buffer
                launch = makers.get(step.buffer.name)
                recorder.step(f"{'reuse' if isinstance(step, Reuse) else 'allocate'} {step.buffer.name}")
                made_by = _makers(launch.kernel.origins if launch else ())
                source = step.source if isinstance(step, Reuse) else ""
                recorder.make(step.buffer.name, hint(step.buffer.nbytes), *made_by, reuses=source)
            case Place():
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
                    recorder.make(step.out, hint(step.layout.nbytes), *_makers(step.origins))
                if isinstance(step, Extern):
                    recorder.take_inside(step.out, _inside(step, buffers), *_makers(step.origins))
                if step.layout is not None:
                    buffers[step.out] = step.layout
            case Free():
                recorder.free(step.names)
            case HandOver():
                recorder.hand_over(step.name)
    return recorder.plan()


def _inside(call: Extern, buffers: Mapping[str, Buffer]) -> int:
    """The bytes that a call takes beside its result; `buffers` are the tensors that exist, by name."""
    args = [_operand(buffers.get(arg.name)) if isinstance(arg, Name) else arg for arg in call.args]
    results = [] if call.layout is None else [_operand(call.layout)]
    return getattr(call.op, "inside", 0) or workspace(call.op, args, [one for one in results if one is not None])


def _operand(buffer: Buffer | None) -> Operand | None:
    if buffer is None:
        return None
    shape, stride = (tuple(map(hint, sizes)) for sizes in (buffer.shape, buffer.stride))
    return Operand(shape, stride, buffer.dtype, buffer.device)


def _makers(origins: Origins) -> tuple[str, UserLocation | None]:
    """The operations and the user's line behind a buffer."""
    names = ", ".join(dict.fromkeys(origin.op for origin in origins))
    return names, next((origin.where for origin in origins if origin.where is not None), None)
