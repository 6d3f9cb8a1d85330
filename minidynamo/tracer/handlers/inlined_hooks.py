"""Owns hooks of tensors whose operations become a part of the backward graph: functions of the gradient and of tensors
that the graph computes.

The body is traced when the hook is registered. At the end of the frame, the hook becomes a part of the graph if no
program can see the difference: the hook, its handle, its cells and the tensor are lost, and each result that requires
grad passes its gradient to the tensor. Otherwise the hook runs eagerly.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch import fx

from minidynamo.bytecode.instructions import decode
from minidynamo.compat import AUTOCAST_DEVICES, memory_of
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphBreak
from minidynamo.graph.autograd_calls import inlined_hook, is_autograd_call
from minidynamo.tracer.frames.interpreter import Raised, Tracer
from minidynamo.tracer.graph.open_graphs import Subgraph
from minidynamo.tracer.handlers.dry_run import watching
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records.side_effects import Called, Effect
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import NestedFunctionVariable
from minidynamo.variables.tensors import HookVariable, TensorVariable

# Attributes of a gradient that differ between an eager and a compiled backward, or with `create_graph`.
_VARYING = {
    "stride",
    "storage_offset",
    "untyped_storage",
    "storage",
    "data_ptr",
    "grad_fn",
    "view",
    "as_strided",
    "data",
}
_VARYING |= {"requires_grad", "retains_grad", "grad", "names", "layout"}
# Beginnings of the names of functions that read settings, and of private attributes.
_READERS = ("_", "is_", "are_", "get_", "set_", "use_")
# Modules whose attributes stay as they are until backward runs.
_MODULES = (torch, torch.nn, torch.nn.functional, torch.functional, torch.linalg, torch.special, torch.fft, math)


@record(frozen=True, eq=False)
class TracedHook:
    """The body of a hook."""

    tensor: TensorVariable
    function: NestedFunctionVariable
    #: the contents of the hook's cells
    closure: tuple[TensorVariable, ...]
    #: takes the tensors of the closure that the body reads, then the gradient
    subgraph: Subgraph
    result: TensorVariable


def trace_hook(tx: Tracer, tensor: TensorVariable, hook: VariableTracker) -> TracedHook | None:
    """Traces the body of a hook; returns None for a hook that must run eagerly."""
    if not isinstance(hook, NestedFunctionVariable) or not _reads_closure_alone(hook) or tensor.source is not None:
        return None
    closure = [cell.contents for cell in hook.closure if cell.cell is None]
    tensors = [value for value in closure if isinstance(value, TensorVariable) and value.source is None]
    is_cast = any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES))
    if len(tensors) != len(hook.closure) or is_cast or not torch.is_grad_enabled():
        return None
    depth = len(tx.frames)
    try:
        with torch.no_grad(), tx.graph.open_subgraph([], takes_numbers=True) as subgraph, watching(tx, _refuse):
            gradient = tx.graph.inner_input(tensor, None, False)
            result = tx.call(hook, [gradient])
    except (GraphBreak, Raised):
        del tx.frames[depth:]
        return None
    if not isinstance(result, TensorVariable) or result.node.graph is not subgraph.graph or subgraph.draws:
        return None
    facts = [(fake.shape, fake.dtype, fake.device) for fake in (result.fake, gradient.fake)]
    creates = any(node.op.startswith("call") and not node.all_input_nodes for node in subgraph.graph.nodes)
    if creates or facts[0] != facts[1] or subgraph.writes or len(subgraph.tensors) != len(subgraph.inputs):
        return None
    return TracedHook(tensor, hook, tuple(tensors), subgraph, result)


def _reads_closure_alone(hook: NestedFunctionVariable) -> bool:
    """Returns whether a hook reads the gradient, its closure, and functions of torch, but no setting of torch."""
    if hook.defaults or hook.kwdefaults or hook.attributes or not all(map(_is_constant, hook.code.co_names)):
        return False
    names = {step.argval for step in decode(hook.code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    has_functions = any(isinstance(constant, types.CodeType) for constant in hook.code.co_consts)
    return not has_functions and all(_is_module(hook.namespace.get(name)) for name in names)


def _is_constant(name: str) -> bool:
    """Returns whether an attribute of torch or a gradient is the same in each backward. Classes switch settings."""
    if name in _VARYING or name.startswith(_READERS):
        return False
    value = getattr(torch, name, None)
    return _is_module(value) if isinstance(value, types.ModuleType) else not isinstance(value, type)


def _is_module(value: object) -> bool:
    return any(value is module for module in _MODULES)


def _refuse(effect: Effect) -> NoReturn:
    raise GraphBreak(Diagnostic("MD212", "a hook has side effects"))


def inline_hooks(tx: Tracer, returned: Iterable[VariableTracker]) -> None:
    """Puts the traced hooks of a frame that returns into the graph, if all calls that autograd must see are such
    hooks."""
    found: dict[HookVariable, Called] = {}
    for effect in tx.side_effects.journal:
        if isinstance(effect, Called) and effect.args and isinstance(effect.args[0], HookVariable):
            found[effect.args[0]] = effect
    calls = [node for node in tx.graph.graph.nodes if is_autograd_call(node)]
    hooks = [handle for handle in found if handle.traced is not None]
    if not hooks or {handle.node for handle in hooks} != {*calls} or _has_writes(tx, calls):
        return
    journal = tx.side_effects.journal
    tx.side_effects.journal = [effect for effect in journal if effect not in found.values()]
    reachable_values, _ = reachable(returned, tx.side_effects)
    if not all(_is_unseen(tx, handle, {*reachable_values}) for handle in hooks):
        tx.side_effects.journal = journal
        return
    for handle in hooks:
        traced: TracedHook = handle.traced
        with tx.graph.graph.inserting_before(handle.node):
            body = tx.graph.close_subgraph(traced.subgraph, [traced.result], "hook_graph")
            operands = tuple(tensor.node for tensor in traced.subgraph.tensors)
            call = tx.graph.graph.call_function(inlined_hook, (traced.tensor.node, body, operands))
            call.meta.update(handle.node.meta, mutates=True, written_memory=(), example_value=None)
        tx.graph.graph.erase_node(handle.node)


def _has_writes(tx: Tracer, calls: list[fx.Node]) -> bool:
    others = [node for node in tx.graph.graph.nodes if node not in calls]
    return any(node.op == "get_attr" or node.meta.get("mutates") for node in others)


def _is_unseen(tx: Tracer, handle: HookVariable, kept: set[VariableTracker]) -> bool:
    """Returns whether nothing that lives after the frame can change the hook, or see that it does not run eagerly."""
    traced: TracedHook = handle.traced
    lost = (handle, traced.tensor, traced.function, *traced.function.closure, *traced.closure)
    if not kept.isdisjoint(lost) or [cell.contents for cell in traced.function.closure] != [*traced.closure]:
        return False
    results = [value for value in kept if isinstance(value, TensorVariable)]
    inputs = [node.meta.get("example_value") for node in tx.graph.graph.find_nodes(op="placeholder")]
    memory = {memory_of(fake) for fake in [*(v.fake for v in results), *inputs] if isinstance(fake, torch.Tensor)}
    if any(isinstance(fake, list | tuple) for fake in inputs) or any(
        memory_of(tensor.fake) in memory for tensor in (traced.tensor, *traced.closure)
    ):
        return False
    fakes = [tx.graph.use(value) for value in results if value.source is None]
    hooked = tx.graph.use(traced.tensor)
    return all((hooked.grad_fn, hooked.output_nr) in _edges(fake) for fake in fakes if fake.requires_grad)


def _edges(fake: torch.Tensor) -> Iterator[tuple[Any, int]]:
    """Yields the edges of the autograd graph of a tensor."""
    todo, seen = [(fake.grad_fn, fake.output_nr)], set[Any]()
    while todo:
        edge = todo.pop()
        if edge not in seen and edge[0] is not None:
            seen.add(edge)
            yield edge
            todo += edge[0].next_functions
