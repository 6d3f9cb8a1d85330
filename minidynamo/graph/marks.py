"""Owns the keys of `meta`, of nodes and of graphs: what each means, which files write it and which folders read it.

`tests/graph/test_marks.py` compares the tables with the code. Keys without a constant are written as literals.

Marks the nodes of a decomposed torch operation with the operation's name, for error messages, and the number of the
call. A program may call the components itself, and then expects error messages that name the components. The number
identifies the call: one kernel in eager.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo.compat import OpOverload
from minidynamo.core.records import record


@record(frozen=True)
class Key:
    """A key of `meta`."""

    #: the meaning of the value
    meaning: str
    #: files of the package that write the key, without `.py`
    written_by: str
    #: folders of the package that read the key
    read_by: str


COMPUTES_FIRST = "minidynamo_computes_first"
DIES = "dies"
FROM_DATA = "from_data"
IN_PLACE = "in_place"
IN_STEPS = "in_steps"
MAY_DIE = "may die"
ONLY_COMPUTES = "only computes"
PARAMETER = "parameter"
PART_OF = "part_of"
RECORDS_WRITES = "minidynamo_records_writes"
RESULT_GRADIENT = "result_gradient"
RETURNED = "returned"
USERS_BACKWARD = "users_backward"
WRITTEN = "written"

GRAPH_KEYS = {
    COMPUTES_FIRST: Key(
        "the callable computes everything before autograd records a write or saves a tensor",
        "backends/built_in",
        "tracer",
    ),
    IN_STEPS: Key("the callable of the backward graph runs in steps", "autograd/runtime/partial_backward", "backends"),
    RECORDS_WRITES: Key(
        "the graph may raise, depending on data, after writes that autograd records: a backend should do them last",
        "tracer/capture/frame_end",
        "backends",
    ),
}
"""Keys of the `meta` of a captured graph or a backward graph."""

NODE_KEYS = {
    "checkpoint": Key(
        "the checkpoint that computes the node again in backward", "autograd/graph/provenance", "autograd"
    ),
    "draws": Key("whether the node may draw random numbers", "tracer/graph/output_graph", "autograd tracer"),
    "example_value": Key(
        "the fake value of a node of a captured graph",
        "autograd/segments tracer/graph/arguments tracer/graph/inputs tracer/graph/open_graphs "
        "tracer/graph/output_graph tracer/handlers/inlined_hooks",
        "autograd backends frontend graph memory tracer",
    ),
    "mutates": Key(
        "whether the node has a side effect",
        "frontend/comptime_context tracer/graph/output_graph tracer/handlers/autograd_calls "
        "tracer/handlers/collectives tracer/handlers/inlined_hooks tracer/handlers/storages",
        "autograd graph tracer",
    ),
    "precedes_draw": Key(
        "whether it is the last node before the program draws a random number",
        "tracer/handlers/random_numbers",
        "tracer",
    ),
    "source": Key("the source of a placeholder, until the graph is finished", "tracer/graph/inputs", "tracer"),
    "stack_trace": Key("the user's line of a node, as torch stores it", "frontend/comptime_context", ""),
    "steal_arg": Key(
        "whether the placeholder is a list that the graph empties", "tracer/graph/inputs", "autograd graph graph_cache"
    ),
    "user_cache_hash": Key("the user's hash of an inlined hook", "graph/saved_tensor_hooks", "graph_cache"),
    "user_location": Key(
        "the user's line",
        "autograd/functional/written_inputs autograd/graph/provenance autograd/partition/hook_graphs "
        "graph_cache/graphs tracer/graph/inputs tracer/graph/open_graphs tracer/graph/output_graph",
        "autograd backends codegen frontend graph graph_cache memory tracer",
    ),
    "val": Key(
        "the fake value of a node of an ATen graph",
        "autograd/functional/written_inputs autograd/graph/graph_builder autograd/layout/dim_order "
        "autograd/partition/packing autograd/reinplace/reuse autograd/runtime/partial_backward "
        "autograd/trace/call_rewrites autograd/trace/defaults graph_cache/graphs",
        "autograd codegen compat graph graph_cache memory",
    ),
    "written_memory": Key(
        "the memory that the node writes to",
        "tracer/graph/output_graph tracer/handlers/collectives tracer/handlers/inlined_hooks tracer/handlers/storages",
        "autograd tracer",
    ),
    DIES: Key(
        "the input dies at its last use, as saved tensors do",
        "autograd/partition/packing autograd/partition/partition",
        "autograd memory",
    ),
    FROM_DATA: Key(
        "whether the node computes a number, or numbers, from the values of tensors",
        "tracer/graph/output_graph",
        "autograd backends tracer",
    ),
    IN_PLACE: Key("the operator that writes the result over its first argument", "backends/built_in", "codegen"),
    MAY_DIE: Key(
        "the input is an argument with a history: in backward it dies at its last use if the caller has released it",
        "autograd/partition/packing",
        "",
    ),
    ONLY_COMPUTES: Key(
        "whether the subgraph of the node runs no code of the user", "tracer/graph/open_graphs", "tracer"
    ),
    PARAMETER: Key("whether the input is a parameter, which hooks may skip", "autograd/partition/packing", "autograd"),
    PART_OF: Key(
        "the torch operation that the node is a part of, and the number of its call",
        "graph/marks graph_cache/graphs",
        "codegen graph graph_cache memory",
    ),
    RESULT_GRADIENT: Key("the result whose gradient the node is", "autograd/build_signature", "autograd"),
    RETURNED: Key(
        "forward returned the input: it does not die in backward if the caller holds it",
        "autograd/partition/partition",
        "memory",
    ),
    USERS_BACKWARD: Key(
        "the call of an autograd.Function's backward in which the node was made",
        "autograd/graph/provenance",
        "autograd",
    ),
    WRITTEN: Key(
        "position of a result -> position of the argument that the program has written it to",
        "autograd/functional/functional_graph autograd/functional/functionalize",
        "autograd memory",
    ),
}
"""Keys of the `meta` of nodes."""

RAISES = "raises"
"""The value of `FROM_DATA` if the computation raises an error for some numbers."""


_numbers = itertools.count()


class Call(NamedTuple):
    """A call that was traced as several nodes: the name of the operation, and a number that is unique in a graph."""

    operation: str
    number: int


def marking(table: Mapping[OpOverload, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Returns `table` (operation -> decomposition) with decompositions that mark added nodes of the traced graph. In
    nested decompositions, the mark of the outer call wins.
    """
    return {op: _marking(op, split) for op, split in table.items()}


def _marking(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(split)
    def marked(*args: Any, **kwargs: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return split(*args, **kwargs)
        nodes = mode.tracer.graph.nodes
        before = next(iter(reversed(nodes)), None)
        result = split(*args, **kwargs)
        call = Call(op.overloadpacket.__name__, next(_numbers))
        for node in itertools.takewhile(lambda node: node is not before, reversed(nodes)):
            node.meta[PART_OF] = call
        return result

    return marked


def is_inside(node: fx.Node) -> bool:
    """Returns whether all users of a node belong to the same call: its kernel need not keep the result in memory."""
    call = node.meta.get(PART_OF)
    return call is not None and all(user.meta.get(PART_OF) == call for user in node.users)
