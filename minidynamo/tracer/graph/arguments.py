"""Owns what stands for a tracker among the arguments of a call: in its node, and when it runs on fake tensors.

Which calls become nodes is decided in `output_graph.py`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx

from minidynamo.tracer.graph.inputs import GraphInputs
from minidynamo.tracer.graph.open_graphs import OpenGraphs
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.tracer.records.copies import NUMPY_SCALARS
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, Keyword, SequenceVariable, SliceVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable


class NotInGraph(Exception):
    """A value cannot be an argument of a graph node, or its result; the message names its class."""


_READ_BY_TORCH = ("__len__", "__getitem__", "__iter__", "__index__", "__int__", "__float__", "__bool__", "keys")


def _reads_itself(cls: type) -> bool:
    """Whether a class of containers overrides a method by which some functions of torch read it, and others do not."""
    return any(isinstance(getattr(cls, name, None), types.FunctionType) for name in _READ_BY_TORCH)


class Arguments:
    """Gives pairs: what stands for trackers in a node, and in a call on fake tensors."""

    def __init__(self, graphs: OpenGraphs, inputs: GraphInputs) -> None:
        self._open = graphs
        self._inputs = inputs

    def all(self, variables: Iterable[VariableTracker]) -> tuple[list[Any], list[Any]]:
        """What stands for several trackers."""
        pairs = [self.one(variable) for variable in variables]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def named(self, variables: Mapping[Any, VariableTracker]) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """What stands for the values of a dict."""
        nodes, fakes = self.all(variables.values())
        keys = [str(key) if isinstance(key, Keyword) else key for key in variables]
        return dict(zip(keys, nodes)), dict(zip(keys, fakes))

    def one(self, variable: VariableTracker) -> tuple[Any, Any]:
        """What stands for a tracker. Raises NotInGraph where nothing can."""
        if isinstance(variable, TensorVariable):
            return self.node(variable), self._inputs.use(variable)
        if isinstance(variable, ConstantVariable):
            if type(variable.value) in NUMPY_SCALARS:
                raise NotInGraph(type(variable.value).__name__)
            return variable.value, variable.value
        if isinstance(variable, NumberVariable):
            return self._number(variable)
        if isinstance(variable, ClassVariable):
            raise NotInGraph("class")  # the text of a graph has no name for it
        if isinstance(variable, ObjectVariable) and variable.storage is not None:
            if isinstance(variable.storage, SequenceVariable | DictVariable) and _reads_itself(variable.cls):
                raise NotInGraph(variable.cls.__name__)
            return self.one(variable.storage)  # torch looks at the container below
        if isinstance(variable, SequenceVariable) and variable.cls in (list, tuple, torch.Size):
            cls = list if variable.cls is list else tuple
            nodes, fakes = self.all(variable.items)
            return cls(nodes), cls(fakes)
        if isinstance(variable, SliceVariable):
            bounds = (variable.start, variable.stop, variable.step)
            if not all(isinstance(bound, ConstantVariable) for bound in bounds):
                nodes, fakes = self.all(bounds)
                return slice(*nodes), slice(*fakes)
        try:
            if isinstance(variable, DictVariable) and variable.cls is dict:
                return self.named({as_constant(key.variable): value for key, value in variable.items.items()})
            value = as_constant(variable)
        except NotConstant:
            raise NotInGraph(variable.python_type.__name__) from None
        return value, value

    def node(self, tensor: TensorVariable) -> torch.fx.Node:
        """What stands for a tensor in a node, whatever is asked of the tensor."""
        self._inputs.bring_home(tensor)
        if not self._open.holds(tensor.node):
            raise NotInGraph("tensor that a branch of cond has computed")
        return self._open.node_of(tensor)

    def _number(self, variable: NumberVariable) -> tuple[Any, Any]:
        # What is asked of a symbol that is infinite, torch decides without a guard.
        if not self._open.takes_numbers or not math.isfinite(variable.here):
            value = variable.pin()
            return value, value
        if variable.node is None or not self._open.holds(variable.node):
            variable.node = self._inputs.number(variable)
        node = self._open.node_of(variable)
        if variable.plain and self._open.subgraph is not None:
            self._open.subgraph.has_plain_numbers = True
        return node, variable.here if variable.plain else node.meta["example_value"]
