"""Owns the arguments of a call: their form in a graph node, and their form in a run on fake tensors.

The choice of calls that become nodes is not here (`output_graph.py`)."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from minidynamo.graph.autograd_calls import BackwardState
from minidynamo.graph.collectives import PendingWork
from minidynamo.tracer.graph.inputs import GraphInputs
from minidynamo.tracer.graph.open_graphs import OpenGraphs
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.tracer.records.immutable_classes import NUMPY_SCALARS
from minidynamo.tracer.records.tensor_classes import special_kind
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, SequenceVariable, SliceVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable
from minidynamo.variables.tensors import BackwardStateVariable, ItemVariable, OpaqueResult, TensorVariable


class NotInGraph(Exception):
    """Raised if a value cannot be an argument or result of a graph node; the message names the class."""


_READ_BY_TORCH = ("__len__", "__getitem__", "__iter__", "__index__", "__int__", "__float__", "__bool__", "keys")


def _overrides_reading(cls: type) -> bool:
    """Returns whether a container class overrides a method by which only some functions of torch read it."""
    return any(isinstance(getattr(cls, name, None), types.FunctionType) for name in _READ_BY_TORCH)


def _noun(variable: VariableTracker) -> str:
    """Returns the class of a value, or what is special about a tensor of torch."""
    kind = ""
    if isinstance(variable, OpaqueVariable) and variable.python_type in (torch.Tensor, torch.nn.Parameter):
        kind = special_kind(variable.value)
    return kind or variable.python_type.__name__


class Arguments:
    """Converts trackers to pairs: (argument of a node, argument of a run on fake tensors)."""

    def __init__(self, graphs: OpenGraphs, inputs: GraphInputs) -> None:
        self._open = graphs
        self._inputs = inputs

    def convert_all(self, variables: Iterable[VariableTracker]) -> tuple[list[Any], list[Any]]:
        """Converts several trackers; returns two lists."""
        pairs = [self.convert(variable) for variable in variables]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def convert_named(self, variables: Mapping[Any, VariableTracker]) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Converts the values of a dict; returns two dicts."""
        nodes, fakes = self.convert_all(variables.values())
        return dict(zip(variables, nodes)), dict(zip(variables, fakes))

    def convert(self, variable: VariableTracker) -> tuple[Any, Any]:
        """Converts a tracker. Raises NotInGraph if a graph cannot hold the value."""
        if isinstance(variable, TensorVariable):
            return self.node(variable), self._inputs.use(variable)
        if isinstance(variable, ConstantVariable):
            if type(variable.value) in NUMPY_SCALARS:
                raise NotInGraph(type(variable.value).__name__)
            return variable.value, variable.value
        if isinstance(variable, NumberVariable):
            return self._number(variable)
        if isinstance(variable, ItemVariable):
            return self._item(variable)
        if isinstance(variable, OpaqueResult) and variable.cls is not RemovableHandle:
            return variable.node, PendingWork()
        if isinstance(variable, BackwardStateVariable):
            return variable.node, BackwardState()
        if isinstance(variable, ClassVariable):
            raise NotInGraph("class")  # a class has no name in the text of a graph
        if isinstance(variable, ObjectVariable) and variable.storage is not None:
            if isinstance(variable.storage, SequenceVariable | DictVariable) and _overrides_reading(variable.cls):
                raise NotInGraph(variable.cls.__name__)
            return self.convert(variable.storage)  # torch reads the container below
        if isinstance(variable, SequenceVariable) and variable.cls in (list, tuple, torch.Size):
            cls = list if variable.cls is list else tuple
            nodes, fakes = self.convert_all(variable.items)
            return cls(nodes), cls(fakes)
        if isinstance(variable, SliceVariable):
            bounds = (variable.start, variable.stop, variable.step)
            if not all(isinstance(bound, ConstantVariable) for bound in bounds):
                nodes, fakes = self.convert_all(bounds)
                return slice(*nodes), slice(*fakes)
        try:
            if isinstance(variable, DictVariable) and variable.cls is dict:
                return self.convert_named({as_constant(key.variable): value for key, value in variable.items.items()})
            value = as_constant(variable)
        except NotConstant:
            raise NotInGraph(_noun(variable)) from None
        return value, value

    def node(self, tensor: TensorVariable) -> torch.fx.Node:
        """Returns the node of a tensor, without a guard on the tensor."""
        self._inputs.move_to_list(tensor)
        if not self._open.holds(tensor.node):
            raise NotInGraph("tensor that a branch of cond has computed")
        return self._open.node_of(tensor)

    def _item(self, item: ItemVariable) -> tuple[Any, Any]:
        if item.cls not in (int, float) or self._open.subgraph is not None:
            raise NotInGraph(f"{item.cls.__name__} that the graph reads from a tensor")
        if item.fake is None:
            item.fake = item.node.meta["example_value"] = self._inputs.unbacked(item.cls)
        return item.node, item.fake

    def _number(self, variable: NumberVariable) -> tuple[Any, Any]:
        # Torch decides branches on an infinite symbol without a guard.
        if not self._open.takes_numbers or not math.isfinite(variable.unguarded_value):
            value = variable.specialize()
            return value, value
        if variable.node is None or not self._open.holds(variable.node):
            variable.node = self._inputs.number(variable)
        node = self._open.node_of(variable)
        if variable.is_scalar_argument and self._open.subgraph is not None:
            self._open.subgraph.has_scalar_arguments = True
        return node, variable.unguarded_value if variable.is_scalar_argument else node.meta["example_value"]
