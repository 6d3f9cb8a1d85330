"""Owns the stage list of the code generator: from an ATen graph to a callable, on one screen.

Each stage is a folder next to this file, in the order of the imports below: lowering, scheduling, memory, printers,
runtime. The only decision made here is the target.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from minidynamo.codegen.ir.kernel_dedup import distinct, representatives
from minidynamo.codegen.ir.loops import Kernel, LoopProgram
from minidynamo.codegen.ir.text import kernel_text, program_text
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.lowering.graph import devices_of, lower_graph
from minidynamo.codegen.lowering.registry import find as find
from minidynamo.codegen.lowering.registry import lowered_ops as lowered_ops
from minidynamo.codegen.memory.plan import Handing, HostProgram, verify_host
from minidynamo.codegen.peak_splitting import Deaths, Limit, cut_at_peak, excess, scheduled
from minidynamo.codegen.printers import cpp, triton
from minidynamo.codegen.printers.host import Calling, print_host
from minidynamo.codegen.runtime import library, triton_launch
from minidynamo.codegen.runtime.host_text import HostText
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import notice, phase
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, KernelBuildError, KernelsUnavailable, UnknownName, nearest
from minidynamo.graph.marks import DIES, MAY_DIE, RETURNED
from minidynamo.memory.plan import MemoryPlan
from minidynamo.memory.unfused_peak import peaks_of_operations

TARGETS = ("auto", "cpp", "triton", "aten")

Launchers = dict[str, Callable[..., None]]


@record(frozen=True)
class CompiledGraph:
    """The compiled form of a graph, with the text of each stage."""

    #: Takes one list of inputs, empties the list, and returns a tuple of the graph's outputs.
    call: Callable[[list[Any]], tuple[Any, ...]]
    #: "cpp", "triton" or "aten".
    target: str
    #: The host program as data.
    program: HostProgram
    #: The memory plan of the host program.
    memory: MemoryPlan
    #: The loop program, as text.
    loops_text: str
    #: The kernels in the loop IR, as text.
    kernel_text: str
    #: The source of the kernels; "" without kernels.
    kernel_source: str
    #: The text of the host program.
    host: HostText
    #: Kind of text ("loops", "kernel", "memory", "host") -> the file with the text.
    paths: dict[str, str]
    #: Name of a kernel -> the function that launches the kernel.
    launchers: Launchers
    #: The globals of the host program.
    namespace: Mapping[str, Any]
    #: False if a kernel could not be built: the next process tries again.
    is_storable: bool = True


def compile_graph(
    gm: fx.GraphModule,
    *,
    target: str = "auto",
    name: str = "graph",
    handing_over: Handing = Handing.NONE,
    fallback_graph: Callable[[], fx.GraphModule] | None = None,
) -> CompiledGraph:
    """Compiles a functional ATen graph whose nodes carry fake tensors in `meta["val"]`.

    With `handing_over` the callable hands over its results (see `graph/boxed.py`). `fallback_graph` builds an
    equivalent graph, which is compiled instead if the peak of `gm` is above the limit and the peak of the other graph
    is lower.

    Raises UnknownName for an unknown target. Where kernels cannot be built or loaded, the graph runs with torch's own
    kernels, after one notice.
    """
    plan = functools.partial(_planned, gm, name=name, handing_over=handing_over, fallback_graph=fallback_graph)
    chosen = choose_target(gm, target)
    planned = plan(target=chosen)
    try:
        return _compile(*planned, chosen, name)
    except KernelsUnavailable as unavailable:
        notice(unavailable.diagnostic)
        compiled = _compile(*plan(target="aten"), "aten", name)
        return replace(compiled, is_storable=not isinstance(unavailable, KernelBuildError))


def _unlimited(taken: bool, held: bool) -> int:
    """Returns the limit of the peak of a graph without kernels, whose order is fixed."""
    return sys.maxsize


def _planned(
    gm: fx.GraphModule,
    *,
    target: str,
    name: str,
    handing_over: Handing,
    fallback_graph: Callable[[], fx.GraphModule] | None,
) -> tuple[LoopProgram, HostProgram, MemoryPlan]:
    limit = peaks_of_operations(gm, backward=bool(handing_over)) if target != "aten" else _unlimited
    schedule = functools.partial(_scheduled, target=target, name=name, handing_over=handing_over)
    best = schedule(gm, limit)
    if fallback_graph is not None and best[3] > 0:
        fallback = schedule(fallback_graph(), limit)
        best = fallback if fallback[3] < best[3] else best
    return best[:3]


def _compile(loops: LoopProgram, program: HostProgram, memory: MemoryPlan, target: str, name: str) -> CompiledGraph:
    if config.verify_ir:
        verify_host(program)
    paths: dict[str, str] = {}
    kernels_text = "\n".join(map(kernel_text, program.kernels))
    loops_text = program_text(loops)
    paths["loops"] = artifacts.write("loops", name, f"{loops_text}\n{kernels_text}", ".txt")
    kernel_source, launchers = build(program, target, name, paths)
    host, namespace = print_host(program, launchers, _calling(program, target))
    names = dict(namespace)
    paths["memory"] = artifacts.write("memory", name, f"{memory}\n", ".txt", memory)
    call = host.load(namespace)
    paths["host"] = call.__code__.co_filename
    texts = loops_text, kernels_text, kernel_source, host
    return CompiledGraph(call, target, program, memory, *texts, paths, launchers, names)


def _scheduled(
    gm: fx.GraphModule, limit: Limit, *, target: str, name: str, handing_over: Handing
) -> tuple[LoopProgram, HostProgram, MemoryPlan, int]:
    """Returns the scheduled graph, the host program, its memory plan, and the bytes by which the peak exceeds the
    limit.

    On a GPU, long folds become calls of torch's own operations if their partial results would raise the peak too far.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    options = {"join": config.fuse, "verify": config.verify_ir, "handing_over": handing_over}
    uncut: frozenset[str] = frozenset()
    while True:
        lowered = lower_graph(gm, target=target, uncut=uncut)
        if config.verify_ir:
            verify_program(lowered)
        deaths = Deaths(*(_marked(mark, inputs, lowered.inputs) for mark in (DIES, RETURNED, MAY_DIE)))
        loops, _, program, memory = scheduled(lowered, name, limit, deaths=deaths, **options)
        excess_bytes = excess(memory, limit, handing_over=handing_over, deaths=deaths)
        if excess_bytes <= 0 or target != "triton":
            return loops, program, memory, excess_bytes
        new = cut_at_peak(memory, gm, handing_over=handing_over, deaths=deaths) - uncut
        if not new:
            return loops, program, memory, excess_bytes
        uncut |= new


def _marked(mark: str, inputs: Sequence[fx.Node], names: Sequence[str]) -> frozenset[str]:
    """Returns the names of the inputs whose nodes carry the mark."""
    return frozenset(name for node, name in zip(inputs, names) if mark in node.meta)


def build(program: HostProgram, target: str, name: str, paths: dict[str, str]) -> tuple[str, Launchers]:
    """Returns the source of all kernels and a launcher for each kernel. Kernels that differ only in names share a
    launcher."""
    representative_of = representatives(program.kernels)
    if not representative_of:
        return "", {}
    source, launchers = _built(distinct(representative_of), target, name, paths)
    return source, {name: launchers[kernel.name] for name, kernel in representative_of.items()}


def _built(kernels: list[Kernel], target: str, name: str, paths: dict[str, str]) -> tuple[str, Launchers]:
    if target == "cpp":
        source = cpp.print_kernels(kernels)
        paths["kernel"] = artifacts.write("kernel", name, source, ".cpp")
        entries = library.load(source, [cpp.entry_name(k) for k in kernels])
        return source, {k.name: entries[cpp.entry_name(k)] for k in kernels}
    source = triton.print_kernels(kernels)
    paths["kernel"] = artifacts.write("kernel", name, source, ".py")
    with phase("triton"):
        specs = [triton.launch_spec(k) for k in kernels]
        return source, triton_launch.launchers(source, specs, interpret=_on_cpu(kernels), path=paths["kernel"])


def _on_cpu(kernels: Sequence[Kernel]) -> bool:
    return all(kernel.device.type == "cpu" for kernel in kernels)


def _calling(program: HostProgram, target: str) -> Calling:
    """Returns how the host program launches kernels."""
    if target == "cpp":
        return Calling.IN_LIBRARY
    return Calling.TENSORS if _on_cpu(program.kernels) else Calling.ON_STREAM


def choose_target(gm: fx.GraphModule, target: str) -> str:
    """Returns the kernel language for a graph: "auto" is Triton if a tensor is on a GPU, else C++.

    Raises UnknownName for a name that is not in TARGETS.
    """
    if target not in TARGETS:
        what = f"there is no target {target!r}.{nearest(target, TARGETS)}"
        raise UnknownName(Diagnostic("MD102", what, fix=f"Use one of {', '.join(TARGETS)}."))
    if target != "auto":
        return target
    return "triton" if any(device.type == "cuda" for device in devices_of(gm)) else "cpp"
