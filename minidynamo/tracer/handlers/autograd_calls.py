"""Owns calls of autograd during capture: parameters, `requires_grad_`, tensor hooks, gradients, `tensor.data = other`.

Each call is a node of the graph; the node's function is in `minidynamo/graph/autograd_calls.py`. A hook runs eagerly
when gradients are computed, unless it becomes a part of the graph (`inlined_hooks.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from minidynamo.compat import knows_history, memory_of, version_of
from minidynamo.errors import GraphBreak, an
from minidynamo.graph.autograd_calls import (
    custom_function_of,
    fill_hook,
    gradients,
    make_parameter,
    registers_hook,
    replace_data,
    require_grad,
    reserve_hook,
    reserve_node_hook,
    retain_grad,
)
from minidynamo.tracer.calls.tensors import break_after_gradient
from minidynamo.tracer.capture import eager_backward
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.inlined_hooks import trace_hook
from minidynamo.tracer.handlers.values import constant, expect_constant, none
from minidynamo.tracer.lazy.lazy_value import is_none
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BoundBuiltin, MethodVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.tensors import GradFnVariable, HookVariable, OpaqueResult, TensorVariable

_WHY = "It is between autograd and the real tensor."


def _in_main_graph(tx: Tracer, name: str) -> None:
    """Breaks the graph inside a subgraph, which may run twice or not at all: effects on autograd must happen once."""
    if tx.graph.subgraph is not None:
        tx.break_graph("MD212", f"{name} is called in a part of the graph that may run twice", why=_WHY)


@registry.function(torch.nn.Parameter)
def _parameter(
    tx: Tracer, data: VariableTracker | None = None, requires_grad: VariableTracker | None = None
) -> VariableTracker:
    _in_main_graph(tx, "Parameter()")
    is_differentiable = constant(True) if requires_grad is None else constant(tx.truth(requires_grad))
    if data is None or (isinstance(data, ConstantVariable) and data.value is None):
        data = tx.emit(torch.empty, [constant(0)])
    if not isinstance(data, TensorVariable):
        tx.break_graph(
            "MD211", f"a Parameter is made of {an(data.python_type.__name__)}", why="It is not a plain tensor."
        )
    return tx.emit(make_parameter, [data, is_differentiable])


@registry.method(torch.Tensor, "requires_grad_")
def _requires_grad(tx: Tracer, self: TensorVariable, requires_grad: VariableTracker | None = None) -> VariableTracker:
    new_value = True if requires_grad is None else expect_constant(tx, requires_grad, "requires_grad")
    fake = tx.graph.use(self)
    if not knows_history(fake):
        why = "Its base was created and written to under different grad modes, so torch raises an error."
        tx.break_graph("MD212", "`requires_grad_()` is called on a view", why=why)
    is_silent = fake.is_leaf and fake._is_view()  # a view created without grad mode, which is now differentiable
    if new_value is fake.requires_grad and not is_silent:
        return self
    _in_main_graph(tx, "Tensor.requires_grad_()")
    return tx.emit(require_grad, [self, constant(new_value)])


@registry.function(replace_data)
def _replace_data(tx: Tracer, tensor: TensorVariable, data: VariableTracker) -> VariableTracker:
    """Moves the tensor object to the memory of `data`; this counts as a write to the tensor."""
    _in_main_graph(tx, "an assignment to `data`")
    if not isinstance(data, TensorVariable):
        tx.break_graph("MD212", f"`data` becomes {an(data.python_type.__name__)}", why="It is not a plain tensor.")
    old, new = tx.graph.use(tensor), tx.graph.use(data)
    if old.device != new.device:
        tx.break_graph("MD212", "`data` is moved to another device", why=_WHY)
    if tx.side_effects.has_gradient_to_assign(tensor) and (old.shape, old.dtype) != (new.shape, new.dtype):
        break_after_gradient(tx, "an assignment to `data`")
    result = tx.emit(replace_data, [tensor, data])
    next(iter(reversed(tx.graph.graph.nodes))).meta["mutates"] = True
    tx.graph.tensor_numbers.setdefault(memory_of(tensor.fake), lambda: None)
    return result


@registry.method(torch.Tensor, "retain_grad")
def _retain_grad(tx: Tracer, self: TensorVariable) -> VariableTracker:
    _in_main_graph(tx, "Tensor.retain_grad()")
    _check_unwritten(tx, self, "Tensor.retain_grad()")
    return tx.emit(retain_grad, [self])


# Hooks


def _registering_handler(name: str) -> registry.Handler:
    @registry.accepts_lazy("hook")
    def register(tx: Tracer, self: TensorVariable, hook: VariableTracker) -> VariableTracker:
        _in_main_graph(tx, f"Tensor.{name}()")
        _check_unwritten(tx, self, f"Tensor.{name}()")
        traced = trace_hook(tx, self, hook) if name == "register_hook" else None
        handle = _reserve(tx, reserve_hook, self, name, hook)
        handle.traced = traced
        return handle

    return register


def _reserve(
    tx: Tracer, function: Callable[..., None], tensor: TensorVariable, method: str, hook: VariableTracker
) -> HookVariable:
    """Registers a hook: in the graph a placeholder, which the program's function replaces after the graph."""
    state = tx.graph.inputs.backward_state
    name = f"hook{len(state.node.users)}"
    tx.emit(function, [tensor, constant(method), state, constant(name)])
    handle = HookVariable(next(iter(reversed(tx.graph.graph.nodes))), state, name)
    tx.side_effects.record_call(tx.wrap(fill_hook, None), handle, hook)
    return handle


for _name in ("register_hook", "register_post_accumulate_grad_hook"):
    registry.method(torch.Tensor, _name)(_registering_handler(_name))


# Autograd nodes


@registry.attributes(GradFnVariable)
def _of_grad_fn(tx: Tracer, grad_fn: GradFnVariable, name: str) -> VariableTracker:
    if name in _METHODS_OF_NODES:
        return MethodVariable(tx.wrap(_METHODS_OF_NODES[name], None), grad_fn)
    tx.break_graph("MD212", f"`{name}` of a `grad_fn` is used", why="Autograd's graph does not exist yet.")


# While tracing, the handlers below replace these functions. Python calls them after a graph break.


def _node_name(grad_fn: torch.autograd.graph.Node) -> str:
    return grad_fn.name()


def _register_node_hook(grad_fn: torch.autograd.graph.Node, fn: Callable[..., Any]) -> RemovableHandle:
    return grad_fn.register_hook(fn)


def _register_node_prehook(grad_fn: torch.autograd.graph.Node, fn: Callable[..., Any]) -> RemovableHandle:
    return grad_fn.register_prehook(fn)


_METHODS_OF_NODES: dict[str, Callable[..., Any]] = {
    "name": _node_name,
    "register_hook": _register_node_hook,
    "register_prehook": _register_node_prehook,
}


@registry.function(_node_name)
def _name_of_node(tx: Tracer, grad_fn: GradFnVariable) -> VariableTracker:
    return constant(grad_fn.function.name())


@registry.function(_register_node_hook)
def _register_hook_of_node(tx: Tracer, grad_fn: GradFnVariable, fn: VariableTracker) -> VariableTracker:
    return _hook_node(tx, grad_fn, "register_hook", fn)


@registry.function(_register_node_prehook)
def _register_prehook_of_node(tx: Tracer, grad_fn: GradFnVariable, fn: VariableTracker) -> VariableTracker:
    return _hook_node(tx, grad_fn, "register_prehook", fn)


def _hook_node(tx: Tracer, grad_fn: GradFnVariable, method: str, fn: VariableTracker) -> VariableTracker:
    """Registers a hook on the node of a custom Function, which then runs eagerly: other nodes are part of the node of
    a compiled graph."""
    _in_main_graph(tx, f"`{method}()` of a `grad_fn`")
    _check_unwritten(tx, grad_fn.of, f"`{method}()` of a `grad_fn`")
    function = custom_function_of(grad_fn.of.node)
    if function is None:
        tx.break_graph("MD212", f"`{method}()` of the `grad_fn` {grad_fn.function.name()} is called", why=_WHY)
    if not eager_backward.runs_eagerly(function):
        eager_backward.mark_eager(function)
    return _reserve(tx, reserve_node_hook, grad_fn.of, method, fn)


def _check_unwritten(tx: Tracer, tensor: TensorVariable, name: str) -> None:
    """Breaks the graph if `tensor` was written to: its result node is at the computation, not at the write."""
    fake = tx.graph.use(tensor)
    if tensor.source is None and version_of(fake):
        tx.break_graph("MD212", f"{name} is called on a tensor that was written to", why=_WHY)


@registry.method(RemovableHandle, "remove")
def _remove(tx: Tracer, handle: VariableTracker) -> VariableTracker:
    tx.side_effects.record_call(tx.wrap(RemovableHandle.remove, None), handle)
    return none()


@registry.attributes(HookVariable, OpaqueResult)
def _of_hook(tx: Tracer, handle: HookVariable | OpaqueResult, name: str) -> VariableTracker:
    if name == ("remove" if handle.python_type is RemovableHandle else "wait"):
        return BoundBuiltin(handle, name)
    tx.break_graph(
        "MD206", f"`{name}` of {an(handle.python_type.__name__)} is used", why="The graph creates the object."
    )


# Gradients


@registry.function(gradients)
def _gradients(
    tx: Tracer,
    outputs: VariableTracker,
    inputs: VariableTracker,
    grad_outputs: VariableTracker | None = None,
    **options: VariableTracker,
) -> VariableTracker:
    _in_main_graph(tx, "torch.autograd.grad()")
    if any(map(registers_hook, tx.graph.graph.nodes)):
        tx.break_graph(
            "MD212", "gradients are computed after a hook", why="The hook receives its function after the graph."
        )
    options = {name: value for name, value in options.items() if not _is_default(name, value)}
    if not {"retain_graph", "create_graph", "allow_unused"}.issuperset(options):
        tx.break_graph("MD207", "torch.autograd.grad() is called with options that are not captured")
    outputs, inputs = _tensor_or_tuple(tx, outputs), _tensor_or_tuple(tx, inputs)
    for tensor in tx.unpack(inputs) if isinstance(inputs, TupleVariable) else [inputs]:
        if isinstance(tensor, TensorVariable):
            _check_unwritten(tx, tensor, "torch.autograd.grad()")
    output_gradients = [] if grad_outputs is None else [_tensor_or_tuple(tx, grad_outputs)]
    try:
        results = tx.emit(gradients, [outputs, inputs, *output_gradients], options)
        lacks_gradient = any(isinstance(result, ConstantVariable) for result in tx.unpack(results))
    except GraphBreak as error:
        if error.diagnostic.code != "MD202" or not _has_outside_history(tx):
            raise
        lacks_gradient = True  # as far as is known during capture
    if lacks_gradient:
        tx.break_graph("MD212", "a gradient may come from computations outside the graph", why=_WHY)
    return results


def _has_outside_history(tx: Tracer) -> bool:
    """Returns whether a graph input is the result of a computation: its autograd history is outside the graph."""
    placeholders = (node for node in tx.graph.graph.nodes if node.op == "placeholder")
    fakes = (node.meta.get("example_value") for node in placeholders)
    return any(isinstance(fake, torch.Tensor) and not fake.is_leaf for fake in fakes)


# Options of `torch.autograd.grad` with the only value that is captured.
_DEFAULTS = {"only_inputs": True, "is_grads_batched": False, "materialize_grads": False}


def _is_default(name: str, value: VariableTracker) -> bool:
    return name in _DEFAULTS and isinstance(value, ConstantVariable) and value.value is _DEFAULTS[name]


def _tensor_or_tuple(tx: Tracer, value: VariableTracker) -> VariableTracker:
    """Returns a tensor or None unchanged, and any other iterable as a tuple."""
    return value if isinstance(value, TensorVariable | ConstantVariable) else TupleVariable(tx.unpack(value))


# Dual tensors


@registry.function(torch.autograd.forward_ad.unpack_dual)
def _unpack_dual(tx: Tracer, tensor: VariableTracker, *, level: VariableTracker | None = None) -> VariableTracker:
    """Returns the tensor without a tangent: each call checks that no level is active. Subgraphs may have one."""
    _in_main_graph(tx, "unpack_dual()")
    if level is not None and not is_none(tx, level):
        tx.break_graph("MD207", "unpack_dual() of a given level cannot be captured")
    return tx.call(torch.autograd.forward_ad.UnpackedDualTensor, [tensor, ConstantVariable(None)])
