"""Owns the written form of functional ATen graphs that are compiled later, perhaps in another process.

A written node has everything that code generation reads: operator, arguments, fake value, the user's line, and the
operation that it was decomposed from. Nothing here compiles, and reading a graph decides nothing about sizes.
"""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from minidynamo import compat
from minidynamo.compat import FakeTensor
from minidynamo.errors import UserLocation
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph import rng_replay
from minidynamo.graph.marks import DIES, MAY_DIE, PART_OF, RETURNED, Call
from minidynamo.graph.unbacked_symints import checked_index
from minidynamo.graph_cache.encoding import Codec, Damaged, Json, NotStorable
from minidynamo.graph_cache.key import Key

_NUMBER_OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg),
    *(operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(math.floor, math.ceil, math.trunc, math.sqrt, torch.sym_max, torch.sym_min, torch.sym_float, torch.sym_int),
    *(torch.sym_not, torch.sym_ite),
)
NUMBER_FUNCTIONS: dict[str, Any] = {
    f"{function.__module__}.{function.__name__}": function for function in _NUMBER_OPERATORS
}
NUMBER_FUNCTIONS["checked_index"] = checked_index
"""The functions on numbers in graphs and host programs, by a name that is the same in every process."""

RANDOM_FUNCTIONS: dict[str, Any] = {function.__name__: function for function in rng_replay.FUNCTIONS}
"""The functions in graphs and host programs that replay random numbers."""

_FUNCTIONS = {**NUMBER_FUNCTIONS, **RANDOM_FUNCTIONS}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


def write_graph(gm: fx.GraphModule, key: Key) -> Json:
    """Returns the written form of a graph that was derived from the graph with this key; raises NotStorable."""
    codec = _GraphCodec(key)
    return [codec.write_node(node) for node in gm.graph.nodes]


def read_graph(form: Json, key: Key, *, inputs: int) -> fx.GraphModule:
    """Builds the graph that `write_graph` described, for the current program; raises Damaged for any other form.

    The graph must have `inputs` placeholders.
    """
    codec = _GraphCodec(key)
    graph = fx.Graph()
    try:
        with codec.reading():
            for node in form:
                codec.read_node(graph, *node)
        graph.lint()
        ops = [node.op for node in graph.nodes]
        if ops.count("placeholder") != inputs or ops[-1:] != ["output"]:
            raise Damaged("it is not whole")
    except Damaged:
        raise
    except Exception as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    return compat.graph_module(torch.nn.Module(), graph)


class _GraphCodec(Codec):
    """Writes and reads the values in nodes: nodes, fake tensors and symbolic numbers, besides all values of `Codec`."""

    def __init__(self, key: Key) -> None:
        super().__init__(key.context)
        self._symbols = key.symbols
        self._nodes: dict[str, fx.Node] = {}
        self._mode = FakeTensorMode(shape_env=key.symbols.env)
        self._encoders |= {
            immutable_list: self._encoders[list],
            immutable_dict: self._encoders[dict],
            fx.Node: _encode_node,
            FakeTensor: self._encode_fake,
            torch.SymInt: self._encode_number,
            torch.SymFloat: self._encode_number,
        }
        self._decoders |= {
            "node": self._nodes.__getitem__,
            "fake": self._decode_fake,
            "number": self._symbols.read,
        }

    def write_node(self, node: fx.Node) -> Json:
        """Returns the form that `read_node` takes."""
        location = node.meta.get("user_location")
        facts = [self.encode(node.args), self.encode(node.kwargs), self.encode(node.meta.get("val"))]
        extras = [[mark for mark in (DIES, MAY_DIE, RETURNED) if mark in node.meta], node.meta.get(PART_OF)]
        return [node.op, node.name, self._written_target(node), *facts, self.encode(location), *extras]

    def _written_target(self, node: fx.Node) -> Json:
        if node.op in ("placeholder", "output"):
            return node.target
        if node.op != "call_function":
            raise NotStorable(f"it has a {node.op} node")
        name = _NAMES.get(node.target)
        return self.encode(node.target) if name is None else name

    def read_node(self, graph: fx.Graph, op: str, name: str, *rest: Json) -> None:
        """Appends a node to the graph."""
        target, args, kwargs, value, location, marks, call = rest
        if op not in ("placeholder", "output", "call_function"):
            raise Damaged(f"it has a {op!r} node")
        if op == "call_function":
            target = _FUNCTIONS[target] if isinstance(target, str) else self.decode(target)
        node = graph.create_node(op, target, self.decode(args), self.decode(kwargs), name)
        node.meta["val"] = self.decode(value)
        where = self.decode(location)
        if isinstance(where, UserLocation):
            node.meta["user_location"] = where
        node.meta.update(dict.fromkeys(marks, True))
        if call is not None:
            node.meta[PART_OF] = Call(*call)
        self._nodes[name] = node

    @contextlib.contextmanager
    def reading(self) -> Any:
        """Returns a context for creating fake tensors, in which torch's questions about sizes add no guards."""
        env = self._symbols.env
        with self._mode, contextlib.nullcontext() if env is None else env.suppress_guards():
            yield

    def _encode_fake(self, fake: torch.Tensor) -> Json:
        if fake.layout is not torch.strided or fake.is_quantized or fake.is_conj() or fake.is_neg():
            raise NotStorable("it computes a tensor of an unusual kind")
        sizes, strides = ([self.encode(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
        return {"fake": [self.encode(fake.dtype), self.encode(fake.device), sizes, strides]}

    def _decode_fake(self, parts: list[Any]) -> torch.Tensor:
        dtype, device, sizes, strides = map(self.decode, parts)
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)

    def _encode_number(self, number: torch.SymInt | torch.SymFloat) -> Json:
        return {"number": self._symbols.written(number)}


def _encode_node(node: fx.Node) -> Json:
    return {"node": node.name}
