"""Owns the tracing of a hook for saved tensors, on the arguments for one saved tensor.

The hook is traced on fake tensors and made functional like any program. Operations that cannot be part of a graph raise
an error with the names of hook and tensor. `packing.py` places the graphs of hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.functionalize import functionalize
from minidynamo.autograd.graph.inputs import layout_of
from minidynamo.autograd.graph.recomputation import uses_generator
from minidynamo.autograd.trace.joint import trace_joint
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused, HookReturnsSubclass, InvalidHook, summary
from minidynamo.graph.pytree import leaves, rebuild, structure_of
from minidynamo.graph.saved_tensor_hooks import Hooks
from minidynamo.graph.torch_settings import Settings, preserved, restore
from minidynamo.memory.plan import SavedValue

Kind = Literal["pack", "unpack"]

_PLAIN = (bool, int, float, complex, str, type(None))
_CONSTANTS = (*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format)


@record(frozen=True)
class HookGraph:
    """A hook as a functional graph."""

    graph: fx.Graph
    #: One per traced value, in order.
    inputs: list[fx.Node]
    #: The return value of the hook, with nodes in place of tensors and symbolic numbers.
    returned: Any


class HookTracer:
    """Traces hooks. `initial_settings` are those at the start of forward."""

    def __init__(
        self, hooks: Hooks, decompositions: dict[OpOverload, Callable[..., Any]], initial_settings: Settings
    ) -> None:
        self.hooks = hooks
        self.decompositions = decompositions
        self.initial_settings = initial_settings

    def trace(self, kind: Kind, form: Any, values: Mapping[Any, Any], record: SavedValue) -> HookGraph:
        """Traces a hook on `form`, with fake tensors in place of some leaves: `values` maps the leaves to them.

        `record` describes the saved tensor. Raises InvalidHook MD413.
        """
        hook = self.hooks.pack if kind == "pack" else self.hooks.unpack
        structure, flat = structure_of(form), leaves(form)
        structures: list[Any] = []

        def call(*arguments: Any) -> tuple[Any, ...]:
            by_leaf = dict(zip(values, arguments))
            result = _plain(hook(rebuild(structure, [by_leaf.get(leaf, leaf) for leaf in flat])))
            structures.append(structure_of(result))
            returned_leaves = leaves(result)
            for leaf in returned_leaves:
                self.check_returned(kind, leaf, record)
            return tuple(returned_leaves)

        gm = _graph_of_call(call, len(values), record)
        examples = [value.detach() if isinstance(value, torch.Tensor) else value for value in values.values()]
        try:
            trace, functional = self.functional(kind, gm, examples)
        except GraphRefused as refused:
            error = refused.__cause__ or refused
            reads_data = isinstance(error, compat.DataDependentOutput)
            what = "it reads the data of its tensor" if reads_data else summary(error)
            raise self.invalid(kind, what, record) from error
        if any(value.base.version for value in functional.inputs.values()):
            raise self.invalid(kind, "it writes to its argument", record)
        if functional.constants:
            raise self.invalid(kind, "it reads a tensor that is not its argument", record)
        if any(map(uses_generator, functional.emitter.graph.nodes)):
            raise self.invalid(kind, "it draws random numbers", record)
        returned_leaves = [_functional_output(functional, output) for output in trace.outputs]
        return HookGraph(functional.emitter.graph, functional.placeholders, rebuild(structures[-1], returned_leaves))

    def functional(self, kind: Kind, gm: fx.GraphModule, examples: list[Any]) -> tuple[Any, FunctionalGraph]:
        """Returns the trace of a hook and its functional form. A pack hook runs under the autocast settings of
        forward."""
        layout = layout_of(gm, examples)
        with preserved():
            if kind == "pack":
                restore(self.initial_settings)
            with torch.no_grad():
                trace = trace_joint(gm, layout, examples, self.decompositions)
                with compat.without_autocast():
                    return trace, functionalize(trace, layout.flat_names(), examples)

    def check_returned(self, kind: Kind, leaf: Any, record: SavedValue) -> None:
        """Raises InvalidHook for a value that cannot be saved from forward to backward."""
        if isinstance(leaf, (compat.FakeTensor, *compat.SYMBOLIC_NUMBERS, *_CONSTANTS)):
            return
        if isinstance(leaf, torch.Tensor) and type(leaf) in (torch.Tensor, torch.nn.Parameter):
            raise self.invalid(kind, "it returns a tensor that is not its argument", record)
        name = type(leaf).__name__
        if isinstance(leaf, torch.Tensor):
            what = f"it returns {name}, a subclass of torch.Tensor"
            raise HookReturnsSubclass(self.diagnostic(kind, what, record, "Return its inner tensors, in a tuple."))
        raise self.invalid(kind, f"it returns {name}", record)

    def invalid(self, kind: Kind, what: str, record: SavedValue) -> InvalidHook:
        """Returns the error for a hook that cannot be part of a graph."""
        fix = "Repair it, or pass plain functions as hooks, which run as calls."
        return InvalidHook(self.diagnostic(kind, what, record, fix))

    def diagnostic(self, kind: Kind, what: str, record: SavedValue, fix: str) -> Diagnostic:
        hook = self.hooks.pack if kind == "pack" else self.hooks.unpack
        name = getattr(hook, "__qualname__", type(hook).__name__)
        why = f"It was traced for the saved tensor {record.name}, {record.kind}, computed by {record.op}."
        return Diagnostic("MD413", f"the {kind} hook {name} cannot be put into a graph: {what}", why, fix).at(
            record.user_location
        )


def _plain(value: Any) -> Any:
    """Returns `value` with tuples in place of sizes."""
    return rebuild(
        structure_of(value), [tuple(leaf) if isinstance(leaf, torch.Size) else leaf for leaf in leaves(value)]
    )


def _graph_of_call(call: Callable[..., Any], arguments: int, record: SavedValue) -> fx.GraphModule:
    graph = fx.Graph()
    node = graph.call_function(call, tuple(graph.placeholder(f"value_{i}") for i in range(arguments)))
    if record.user_location is not None:
        node.meta["user_location"] = record.user_location
    graph.output(node)
    return fx.GraphModule({}, graph)


def _functional_output(functional: FunctionalGraph, output: Any) -> Any:
    """Returns the functional form of an output of a traced hook."""
    if output.kind == "constant":
        return output.value
    node = output.node
    return functional.nodes[node] if output.kind == "number" else functional.read(functional.values[node])
