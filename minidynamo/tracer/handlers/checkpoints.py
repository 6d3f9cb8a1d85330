"""Owns `torch.utils.checkpoint.checkpoint` during capture: a graph node over a subgraph that backward runs again.

The node's function is in `minidynamo/graph/higher_order.py`. Functions that do more than compute tensors run eagerly.
The reentrant variant also runs eagerly where its results would differ: it inspects its own arguments for gradients.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from minidynamo.compat import memory_of
from minidynamo.errors import an
from minidynamo.graph.higher_order import run_checkpoint, run_reentrant_checkpoint
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.open_graphs import Subgraph
from minidynamo.tracer.handlers.cond import leaves, rebuilt, tensors_in
from minidynamo.tracer.handlers.dry_run import draws_random_numbers, without_side_effects
from minidynamo.tracer.handlers.values import is_constant
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.tensors import TensorVariable

# Options of `checkpoint`, with the values that the node supports.
_OPTIONS = {
    "use_reentrant": (False, True),
    "preserve_rng_state": (True, False),
    "debug": (False,),
    "early_stop": (True,),
    "context_fn": (),
    "determinism_check": (),
}
_WHY = "Its function would run a second time when gradients are computed."

registry.polyfill(checkpoint_sequential)(checkpoint_sequential)  # plain Python code that calls `checkpoint`


@registry.function(checkpoint)
def _checkpoint(
    tx: Tracer, function: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    options = _options(tx, kwargs)
    enabled = torch.is_grad_enabled()
    with (
        tx.graph.open_subgraph((), takes_numbers=True, may_run_eagerly=True) as subgraph,
        without_side_effects(tx, lambda what: _refuse(tx, what)),
    ):
        result = tx.call(function, args, kwargs)
        _check_results(tx, subgraph, result)
        if torch.is_grad_enabled() != enabled:
            _refuse(tx, "its function changes the grad mode")
    if options["use_reentrant"]:
        _check_reentrant(tx, subgraph, args, kwargs, result)
    tensors = tensors_in(result)
    inputs = list(subgraph.inputs)
    node = tx.graph.close_subgraph(subgraph, tensors, f"checkpoint_{len(tx.graph.graph.nodes)}")
    if not options.get("preserve_rng_state", True):
        fakes = [*map(tx.graph.example, inputs)]
        modes = [tx.graph.use(tensor).fake_mode for tensor in subgraph.tensors]  # type: ignore[attr-defined]
        if not modes or draws_random_numbers(tx.graph.module_of(node), fakes, modes[0]):
            _refuse(tx, "it draws other random numbers when it runs again")
    kinds = [(tensor.fake, tensor.fake.requires_grad) for tensor in tensors]
    run = run_reentrant_checkpoint if options["use_reentrant"] else run_checkpoint
    emitted = tx.graph.emit_on_subgraphs(run, "checkpoint", None, [node], inputs, kinds)
    return rebuilt(result, iter(emitted))


def _options(tx: Tracer, kwargs: dict[str, VariableTracker]) -> dict[str, bool]:
    """Removes the options from the keywords of the call and returns them."""
    passed = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    options: dict[str, bool] = {}
    for name, value in passed.items():
        known = value.value if isinstance(value, ConstantVariable) else None
        if not isinstance(known, bool) or known not in _OPTIONS[name]:
            _refuse(tx, f"it is called with this {name}")
        options[name] = known
    if "use_reentrant" not in options:
        _refuse(tx, "it is called without use_reentrant")
    return options


def _check_reentrant(
    tx: Tracer,
    subgraph: Subgraph,
    args: tuple[VariableTracker, ...],
    kwargs: dict[str, VariableTracker],
    result: VariableTracker,
) -> None:
    """Checks the reentrant variant: a custom function of its tensor arguments that first runs without grad mode."""
    if kwargs:
        _refuse(tx, "the reentrant variant takes no keywords")
    if not any(isinstance(arg, TensorVariable) and tx.graph.use(arg).requires_grad for arg in args):
        _refuse(tx, "it is reentrant, and no argument of its function requires grad")
    if subgraph.reads_grad_mode:
        _refuse(tx, "it is reentrant, and its function reads the grad mode")
    parts = result.items if type(result) is TupleVariable else [result]
    if any(tensor not in parts for tensor in tensors_in(result)):
        _refuse(tx, "it is reentrant, and its results are nested")
    fakes = [part.fake for part in parts if isinstance(part, TensorVariable) and torch.is_grad_enabled()]
    for fake in fakes:
        if (fake.is_floating_point() or fake.is_complex()) and not fake.requires_grad:
            _refuse(tx, "it is reentrant, and a result does not require grad")


def _check_results(tx: Tracer, subgraph: Subgraph, result: VariableTracker) -> None:
    """Checks that results are new tensors, constants, or numbers, which Python computes outside of graphs."""
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
            _refuse(tx, f"it returns {an(leaf.python_type.__name__)}")


def _refuse(tx: Tracer, what: str) -> NoReturn:
    fix = "Write checkpoint(function, x, use_reentrant=False), with a function that only computes tensors."
    tx.break_graph("MD207", f"checkpoint() cannot be captured: {what}", why=_WHY, fix=fix)
