"""Owns `torch.utils.checkpoint.checkpoint` while tracing: one graph node over a subgraph, which backward runs again.

The node's function is in `minidynamo/recomputing.py`. The reentrant variant, and functions that do more than compute
tensors, run as written.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.utils.checkpoint import checkpoint

from minidynamo.recomputing import run_checkpoint
from minidynamo.tracer import registry
from minidynamo.tracer.graph.subgraphs import Subgraph, memory_of
from minidynamo.tracer.handlers.conditional import leaves, rebuilt, tensors_in
from minidynamo.tracer.handlers.trials import changing_nothing
from minidynamo.tracer.handlers.values import is_constant
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.tensors import TensorVariable

# Options that say how backward goes about it, with the values that the node stands for.
_OPTIONS = {"use_reentrant": False, "preserve_rng_state": True, "debug": False, "early_stop": True}
_WHY = "Its function would run a second time when gradients are computed."


@registry.function(checkpoint)
def _checkpoint(
    tx: Tracer, function: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    options = {name: kwargs.pop(name) for name in (*_OPTIONS, "context_fn", "determinism_check") if name in kwargs}
    for name, value in options.items():
        if not isinstance(value, ConstantVariable) or value.value is not _OPTIONS.get(name, value):
            _refuse(tx, f"it is called with this {name}")
    if "use_reentrant" not in options:
        _refuse(tx, "it is not said whether it is reentrant")
    enabled = torch.is_grad_enabled()
    with tx.graph.open_subgraph(()) as subgraph, changing_nothing(tx, lambda what: _refuse(tx, what)):
        result = tx.call(function, args, kwargs)
        _check(tx, subgraph, result)
        if torch.is_grad_enabled() != enabled:
            _refuse(tx, "the grad mode is another one behind it")
    tensors = tensors_in(result)
    inputs = list(subgraph.inputs)
    node = tx.graph.close_subgraph(subgraph, tensors, f"checkpoint_{len(tx.graph.graph.nodes)}")
    kinds = [(tensor.fake, tensor.fake.requires_grad) for tensor in tensors]
    made = tx.graph.emit_on_subgraphs(run_checkpoint, "checkpoint", None, [node], inputs, kinds)
    return rebuilt(result, iter(made))


def _check(tx: Tracer, subgraph: Subgraph, result: VariableTracker) -> None:
    """What comes out must be new tensors, and constants."""
    if subgraph.changed_facts() is not None:
        _refuse(tx, "its function changes the shape or history of a tensor from outside")
    seen: set[object] = set()
    for leaf in leaves(result):
        if isinstance(leaf, TensorVariable):
            memory = memory_of(leaf.fake)
            shared = memory in seen or subgraph.input_in_memory_of(leaf.fake) is not None
            if shared or leaf.node.graph is not subgraph.graph:
                _refuse(tx, "its results share memory with each other, or with tensors from outside")
            seen.add(memory)
        elif not is_constant(leaf):
            _refuse(tx, f"it returns a {leaf.python_type.__name__}")


def _refuse(tx: Tracer, what: str) -> NoReturn:
    tx.break_graph("MD207", f"checkpoint() cannot be captured: {what}", why=_WHY)
