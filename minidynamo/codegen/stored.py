"""Owns the stored form of compiled graphs: the host program and its kernels as text, and the names that they need.

This module makes no decisions and knows no files. A graph whose host program needs an object without a stored form is
not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from minidynamo import compat
from minidynamo.codegen import compile_graph
from minidynamo.codegen.ir import loops
from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.size import Derived, Size, Symbol
from minidynamo.codegen.printers import cpp, triton
from minidynamo.codegen.runtime import host_functions, library, random_numbers, triton_launch
from minidynamo.codegen.runtime.host_text import HostText
from minidynamo.codegen.runtime.triton_launch import LaunchSpec
from minidynamo.core import artifacts
from minidynamo.core.events import phase
from minidynamo.graph.boxed import run_steps
from minidynamo.graph.boxed_text import BoxedText
from minidynamo.graph.checked_results import as_promised
from minidynamo.graph_cache.encoding import Codec, Damaged, Json
from minidynamo.graph_cache.graphs import NUMBER_FUNCTIONS, RANDOM_FUNCTIONS
from minidynamo.memory.plan import MemoryPlan, PlannedBuffer

# The functions that host programs call, apart from kernels and operators.
_FUNCTIONS: dict[str, Any] = {
    "empty_cpu": compat.empty_strided_cpu,
    "empty_strided": torch.empty_strided,
    "as_strided": torch.as_strided,
    "on_gpu": host_functions.on_gpu,
    "count_as_new": host_functions.count_as_new,
    "as_promised": as_promised,
    "run_steps": run_steps,
    "must_fit": host_functions.must_fit,
    "bernoulli": random_numbers.bernoulli,
    "fill_bernoulli": random_numbers.fill_bernoulli,
    **RANDOM_FUNCTIONS,
    **{str(op): write_part for op, write_part in host_functions.PART_WRITERS.items()},
    "increment_version": compat.increment_version,
    "reinterpret_tensor": compat.reinterpret_tensor,
    "recurrent_layer_for_training": compat.recurrent_layer_for_training,
    **NUMBER_FUNCTIONS,
}
RECORDS = (BoxedText, HostText, LaunchSpec, Size, Symbol, Derived, Scalar, MemoryPlan, PlannedBuffer)
_TARGETS = ("cpp", "triton", "aten")


def write_graph(compiled: compile_graph.CompiledGraph, codec: Codec) -> Json:
    """Returns the stored form of a compiled graph; raises NotStorable."""
    distinct: dict[int, loops.Kernel] = {}  # by launcher
    for kernel in compiled.program.kernels:
        distinct.setdefault(id(compiled.launchers[kernel.name]), kernel)
    kernels = [*distinct.values()]
    forms = {launcher: {"kernel": kernel.name} for launcher, kernel in distinct.items()}
    forms |= {id(function): {"function": name} for name, function in _FUNCTIONS.items()}
    for step in (*compiled.program.prelude, *compiled.program.steps):
        if isinstance(step, (loops.Compute, loops.Extern)) and isinstance(step.op, compat.OpOverload):
            forms.setdefault(id(compat.operator_function(step.op)), codec.encode(step.op))
    names = {name: forms.get(id(value)) or codec.encode(value) for name, value in compiled.namespace.items()}
    written = codec.context.written
    return {
        "name": compiled.program.name,
        "target": compiled.target,
        "interpreted": all(kernel.device.type == "cpu" for kernel in compiled.program.kernels),
        "names": names,
        "kernels": _write_kernels(kernels, compiled.target, codec),
        "memory": codec.encode(compiled.memory),
        "loops": written(f"{compiled.loops_text}\n{compiled.kernel_text}"),
        "kernel": written(compiled.kernel_source),
        "host": codec.encode(_with_lines(compiled.host, written)),
    }


def _with_lines(host: HostText, translate: Callable[[str], str]) -> HostText:
    """Returns a host program with its lines translated: the user's lines in comments are stored in another form."""
    lines = translate("\n".join(map(str, host.body.lines)))
    return replace(host, body=replace(host.body, lines=tuple(lines.split("\n")) if lines else ()))


def _write_kernels(kernels: list[loops.Kernel], target: str, codec: Codec) -> Json:
    """Returns the key of each kernel in the source: the entry point, or the Triton launch spec."""
    if target == "triton":
        return [[kernel.name, codec.encode(triton.launch_spec(kernel))] for kernel in kernels]
    return [[kernel.name, cpp.entry_name(kernel)] for kernel in kernels]


def read_graph(form: Json, codec: Codec) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Rebuilds the graph that `write_graph` described, in the context of `codec`. The texts are written to files
    like new texts.

    Raises Damaged for an unknown form, and BackendError when a library of kernels is missing and cannot be rebuilt.
    """
    try:
        name, target, names, kernels = (form[key] for key in ("name", "target", "names", "kernels"))
        texts = {kind: codec.context.read(form[kind]) for kind in ("loops", "kernel")}
        host = _with_lines(codec.decode(form["host"]), codec.context.read)
        entries = [(kernel, codec.decode(entry)) for kernel, entry in kernels]
        memory = codec.decode(form["memory"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    if target not in _TARGETS or not isinstance(memory, MemoryPlan):
        raise Damaged(f"its target is {target!r} and its plan a {type(memory).__name__}")
    artifacts.write("loops", name, texts["loops"], ".txt")
    interpret = form.get("interpreted") is True
    launchers = _read_kernels(name, target, texts["kernel"], entries, interpret) if entries else {}
    artifacts.write("memory", name, f"{memory}\n", ".txt", memory)
    namespace = {key: _read_name(value, launchers, codec) for key, value in names.items()}
    return host.load(namespace)


def _read_kernels(
    name: str, target: str, source: str, entries: list[tuple[str, Any]], interpret: bool
) -> compile_graph.Launchers:
    if target == "cpp":
        artifacts.write("kernel", name, source, ".cpp")
        functions = library.load(source, [entry for _, entry in entries])
        return {kernel: functions[entry] for kernel, entry in entries}
    path = artifacts.write("kernel", name, source, ".py")
    with phase("triton"):
        return triton_launch.launchers(source, [spec for _, spec in entries], interpret=interpret, path=path)


def _read_name(form: Json, launchers: compile_graph.Launchers, codec: Codec) -> Any:
    if isinstance(form, dict) and "kernel" in form and form["kernel"] in launchers:
        return launchers[form["kernel"]]
    if isinstance(form, dict) and "function" in form and form["function"] in _FUNCTIONS:
        return _FUNCTIONS[form["function"]]
    value = codec.decode(form)
    return compat.operator_function(value)
