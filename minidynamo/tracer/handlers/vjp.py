"""Owns `torch.func.vjp`: a subgraph of its function, with a node for its values and a node for each call of the
gradient function.

The function runs again in each node. Its inputs must not be written in between, and it must draw no random numbers. If
the gradient function outlives the graph, torch makes it again after the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.fx

from minidynamo.compat import version_of
from minidynamo.graph.func_transforms import Argument, PullBack, Transformation
from minidynamo.graph.pytree import leaves as leaves_of
from minidynamo.graph.pytree import rebuild, structure_of
from minidynamo.graph.torch_settings import Settings, settings
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.open_graphs import GraphValue
from minidynamo.tracer.handlers.cond import tensors_in
from minidynamo.tracer.handlers.dry_run import draws_random_numbers
from minidynamo.tracer.handlers.transforms import (
    distinct_tensors,
    emit_transform,
    given_tensors,
    named,
    names_of_inner,
    refuse_transform,
    spec_of,
    trace_transformed,
)
from minidynamo.tracer.handlers.values import expect_constant
from minidynamo.tracer.records import registry
from minidynamo.variables.base import NumberVariable, VariableTracker
from minidynamo.variables.callables import PullBackVariable
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.tensors import TensorVariable

func: Any = torch.func


def vjp(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Returns `torch.func.vjp` as a transform: a function of the primals."""
    return lambda *primals: func.vjp(function, *primals, has_aux=has_aux)


def values_of(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Returns a transform that computes the values without the gradient function."""

    def values(*primals: Any) -> Any:
        first, _, *aux = func.vjp(function, *primals, has_aux=has_aux)
        return (first, *aux) if has_aux else first

    return values


def gradients_at(function: Callable[..., Any], has_aux: bool, create_graph: bool | None) -> Callable[..., Any]:
    """Returns a call of the gradient function as a transform: a function of the primals and of the cotangents."""

    def pull(primals: Any, cotangents: Any) -> Any:
        return func.vjp(function, *primals, has_aux=has_aux)[1](cotangents, create_graph=create_graph)

    return pull


_NAMES = names_of_inner(func.vjp, "_vjp_with_argnums", "wrapper")


@registry.polyfill(func.vjp)
def _vjp(function: Any, *primals: Any, has_aux: Any = False) -> Any:
    values, pull_back, *aux = vjp_at(function, primals, has_aux)

    def wrapper(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        return pull_back(cotangents, retain_graph, create_graph)

    return (values, named(wrapper, _NAMES), *aux)


def vjp_at(function: Any, primals: Any, has_aux: Any) -> Any:
    """Calls `torch.func.vjp`; during capture, its gradient function is a `PullBackVariable`."""
    return func.vjp(function, *primals, has_aux=has_aux)


@registry.function(vjp_at)
def _vjp_at(
    tx: Tracer, function: VariableTracker, primals: VariableTracker, has_aux: VariableTracker
) -> VariableTracker:
    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, "vjp", what)

    options = {"has_aux": tx.truth(has_aux)}
    args = distinct_tensors(tx, primals, set())
    assert isinstance(args, TupleVariable)
    given = given_tensors(args, DictVariable({}), refuse)
    traced = trace_transformed(
        tx, "vjp", function, args, DictVariable({}), dict.fromkeys(given, (None, True)), derivative=True
    )
    inputs = [*traced.captured, *given]
    module = tx.graph.module_of(traced.subgraph)
    fakes: list[Any] = [*map(tx.graph.example, inputs)]
    if draws_random_numbers(module, fakes, fakes[-1].fake_mode):
        refuse("its function draws random numbers")
    made = Transformation(values_of, options, traced.args, {}, traced.result)
    values = emit_transform(tx, made, "vjp", traced.subgraph, inputs, refuse)
    pull_back = PullBackVariable(
        replace(made, transform=vjp),
        traced.subgraph,
        module,
        inputs,
        len(given),
        tuple(map(_version, inputs)),
        settings(),
    )
    if not options["has_aux"]:
        return TupleVariable([values, pull_back])
    first, aux = tx.unpack(values)
    return TupleVariable([first, pull_back, aux])


def _version(value: GraphValue) -> int | None:
    """Returns the number of writes to a tensor in the graph; None if writes are not counted, and for numbers."""
    return None if isinstance(value, NumberVariable) else version_of(value.fake)


def why_stale(pull_back: PullBackVariable, now: Settings) -> str:
    """Returns the reason why a rerun of the function would return different values, or ""."""
    if tuple(map(_version, pull_back.inputs)) != pull_back.versions:
        return "a tensor that its function took has been written to since"
    if replace(now, grad_enabled=pull_back.settings.grad_enabled) != pull_back.settings:
        return "a setting of torch has changed since its function ran"
    return ""


@registry.method(PullBack, "__call__")
def _call(
    tx: Tracer,
    self: PullBackVariable,
    cotangents: VariableTracker,
    retain_graph: VariableTracker | None = None,
    create_graph: VariableTracker | None = None,
) -> VariableTracker:
    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, "vjp", what)

    why = why_stale(self, settings())
    if why:
        refuse(why)
    given = {value for value in self.inputs[-self.primals :] if isinstance(value, TensorVariable)}
    cotangents = distinct_tensors(tx, cotangents, given)
    tensors = tensors_in(cotangents)
    wanted = None if create_graph is None else expect_constant(tx, create_graph, "create_graph")
    spec = _shifted_positions(spec_of(cotangents, tensors, refuse), self.primals)
    made = Transformation(
        gradients_at,
        {**self.transformation.options, "create_graph": wanted},
        (self.transformation.args, spec),
        {},
        self.transformation.result,
        self.transformation.args,
    )
    return emit_transform(
        tx, made, "pull_back", _node_in_open_graph(tx, self.subgraph), [*self.inputs, *tensors], refuse
    )


def _shifted_positions(spec: Any, by: int) -> Any:
    """Shifts the positions of the arguments by `by`."""
    parts = [Argument(part.position + by) if isinstance(part, Argument) else part for part in leaves_of(spec)]
    return rebuild(structure_of(spec), parts)


def _node_in_open_graph(tx: Tracer, subgraph: torch.fx.Node) -> torch.fx.Node:
    """Returns the node of the subgraph in the open graph."""
    graph = tx.graph.graph
    return subgraph if subgraph.graph is graph else graph.create_node("get_attr", subgraph.target)


@registry.attributes(PullBackVariable)
def _attribute(tx: Tracer, pull_back: PullBackVariable, name: str) -> VariableTracker | None:
    tx.break_graph("MD206", f"`{name}` of a gradient function is used", why="torch makes the function itself.")
