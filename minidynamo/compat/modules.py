"""Owns private names of modules, graph modules and optimizers, and code objects that the tracer recognizes.

`tracer/trace_rules.py` and its handlers decide their treatment.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.optim.optimizer import _use_grad_for_differentiable

from minidynamo.compat.operators import OpOverload

# The implementation of nn.Module.__call__: hooks and forward.
MODULE_CALL: types.FunctionType = typing.cast(types.FunctionType, torch.nn.Module._call_impl)


def module_call(kind: type[torch.nn.Module]) -> typing.Any:
    """Returns the implementation of nn.Module.__call__ for a class, which may override it. `compile(module)` compiles
    this function.
    """
    return kind._call_impl


# The tables of hooks for all modules.
GLOBAL_HOOKS = [
    table
    for name, table in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("_hooks")
]

# Counts uses of a part of torch; nn.Module calls it at construction.
log_api_usage = torch._C._log_api_usage_once

# The decorator of `step` in torch's optimizers: it switches grad mode, and asks torch.compile for graph breaks.
OPTIMIZER_STEP_SWITCH = next(
    constant
    for constant in _use_grad_for_differentiable.__code__.co_consts
    if isinstance(constant, types.CodeType) and constant.co_name == "_use_grad"
)

OPTIMIZER_ZERO_GRAD = inspect.unwrap(torch.optim.Optimizer.zero_grad)  # disabled for torch.compile
_HEALTH_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")

# Methods of optimizers that raise or warn if an accelerator records a graph of an unsuitable step.
OPTIMIZER_HEALTH_CHECKS = [vars(torch.optim.Optimizer)[n] for n in _HEALTH_CHECKS if n in vars(torch.optim.Optimizer)]

# Fused optimizer updates, which take the learning rate as a number or as a tensor.
FUSED_UPDATES = [
    getattr(torch, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    if "tensor_lr" in getattr(torch.ops.aten, name).overloads()
]

# Arithmetic of optimizers on many tensors at once.
foreach_add_: typing.Any = torch._foreach_add_
foreach_mul_: typing.Any = torch._foreach_mul_
foreach_copy_: typing.Any = torch._foreach_copy_

# Sorts the tensors of several lists into groups of one device and dtype; gradient clipping and optimizers use it.
group_tensors: typing.Any = torch._C._group_tensors_by_device_and_dtype


def foreach_operators(name: str) -> list[OpOverload]:
    """Lists the operators that apply `name` to lists of tensors, in place or not, without `out` variants."""
    packets = [getattr(torch.ops.aten, f"_foreach_{name}{suffix}", None) for suffix in ("", "_")]
    operators = [
        getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()
    ]
    return [op for op in operators if not any(argument.is_out for argument in op._schema.arguments)]


@functools.cache
def written_arguments(function: typing.Any) -> dict[str, int]:
    """Returns the names and positions of the arguments that a torch function or operator writes to by its schemas;
    fake tensors do not count writes to lists and to some other arguments.
    """
    if isinstance(function, OpOverload):
        operators = [function]
    else:
        name = function.__name__
        packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
        operators = [getattr(packet, overload) for overload in getattr(packet, "overloads", list)()]
    schemas = [op._schema for op in operators if not any(argument.is_out for argument in op._schema.arguments)]
    return {
        argument.name: position
        for schema in schemas
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info and argument.alias_info.is_write
    }


def _codes_within(code: types.CodeType) -> typing.Iterator[types.CodeType]:
    """Yields a code object, and the codes of functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_within(constant)


# The code that replaces `optimizer.step` under a learning rate scheduler, to record steps.
SCHEDULED_STEP = next(
    code for code in _codes_within(torch.optim.lr_scheduler.LRScheduler.__init__.__code__) if code.co_name == "wrapper"
)


def graph_module(modules: torch.nn.Module | dict[str, typing.Any], graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Builds `torch.fx.GraphModule(modules, graph)` with lazy code."""
    return _LazyGraphModule(modules, graph)


def traced_lazily() -> typing.ContextManager[None]:
    """Makes the graphs traced by torch in this block lazy."""
    return _use_lazy_graph_module(True)


def write_code(module: torch.fx.GraphModule) -> None:
    """Generates the code of `module` and its submodules, for callers with their own modifications of graph modules."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _LazyGraphModule.force_recompile(part)
