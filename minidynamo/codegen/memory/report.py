"""Owns the readable description of a host program's memory: bytes, birth, death and reuse of each buffer.

No decision is made here: `planner.py` makes them.
"""

from __future__ import annotations

from minidynamo.codegen.ir.loops import Extern, GetItem, Origins
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, HostProgram, Launch, Overwrite, Reuse
from minidynamo.errors import UserLocation
from minidynamo.memory.plan import MemoryPlan, PlanRecorder


def memory_plan(program: HostProgram) -> MemoryPlan:
    """Returns the memory plan of a host program. Symbolic sizes count with their values of the traced call."""
    recorder = PlanRecorder(program.name)
    kernels = {buffer.name: kernel for kernel in program.kernels for buffer in kernel.writes}
    for name in program.inputs:
        if name in program.input_buffers:
            recorder.add(name, hint(program.input_buffers[name].nbytes))
    for step in program.steps:
        match step:
            case Allocate() | Reuse():
                kernel = kernels.get(step.buffer.name)
                recorder.step(f"{'reuse' if isinstance(step, Reuse) else 'allocate'} {step.buffer.name}")
                operations = _operations(kernel.origins if kernel else ())
                source = step.source if isinstance(step, Reuse) else ""
                recorder.add(step.buffer.name, hint(step.buffer.nbytes), *operations, reuses=source)
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
                    recorder.add(step.out, hint(step.layout.nbytes), *_operations(step.origins))
                elif isinstance(step, Extern) and step.unused:
                    unused = sum(hint(buffer.nbytes) for buffer in step.unused)
                    recorder.add(step.out, unused, *_operations(step.origins))
            case Free():
                recorder.free(step.names)
            case HandOver():
                recorder.hand_over(step.name)
    return recorder.plan()


def _operations(origins: Origins) -> tuple[str, UserLocation | None]:
    """Returns the operations that compute a buffer, and the first user line among them."""
    names = ", ".join(dict.fromkeys(origin.op for origin in origins))
    return names, next((origin.where for origin in origins if origin.where is not None), None)
