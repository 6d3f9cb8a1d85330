"""Owns nested containers as graph inputs: it flattens the graph, and checks the structure of each call's arguments.

Captured graphs have only tensors and flat lists of tensors as inputs, with a guarded structure. This file serves graphs
from other producers, with placeholders for nested lists, tuples and dicts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.core.records import record
from minidynamo.graph.boxed import mark_boxed, reject_unboxed


@record(frozen=True)
class Structure:
    """The structure of a nested value."""

    #: list, tuple, dict or a class of `torch.return_types`; None for a leaf
    kind: type | None = None
    #: the structures of the items, in order
    parts: tuple[Structure, ...] = ()
    #: the keys of a dict, in order
    keys: tuple[Any, ...] = ()

    def __str__(self) -> str:
        inner = [str(part) for part in self.parts]
        if self.kind is dict:
            return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(self.keys, inner))}}}"
        if self.kind is None:
            return "*"
        return f"[{', '.join(inner)}]" if self.kind is list else f"({', '.join(inner)})"

    @property
    def leaves(self) -> int:
        """Returns the number of leaves."""
        return 1 if self.kind is None else sum(part.leaves for part in self.parts)

    @property
    def is_nested(self) -> bool:
        """Returns whether the value is more than a leaf or a list of leaves."""
        return self.kind in (tuple, dict) or any(part.kind is not None for part in self.parts)


def is_sequence_class(cls: type) -> bool:
    """Returns whether values of the class are traversed item by item; the class then accepts a list of items."""
    return cls in (list, tuple) or cls.__module__ == "torch.return_types"


def structure_of(value: Any) -> Structure:
    """Returns the structure of a value. Only lists, tuples and dicts of exactly these classes, and named results of
    torch, are traversed.
    """
    if type(value) is dict:
        return Structure(dict, tuple(map(structure_of, value.values())), tuple(value))
    if is_sequence_class(type(value)):
        return Structure(type(value), tuple(map(structure_of, value)))
    return Structure()


def leaves(value: Any) -> list[Any]:
    """Lists the leaves of a value, in order."""
    if type(value) is dict:
        value = list(value.values())
    elif not is_sequence_class(type(value)):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def rebuild(structure: Structure, flat: Sequence[Any]) -> Any:
    """Builds a value from structure and leaves."""
    return _rebuild(structure, list(reversed(flat)))


def _rebuild(structure: Structure, rest: list[Any]) -> Any:
    if structure.kind is None:
        return rest.pop()
    parts = [_rebuild(part, rest) for part in structure.parts]
    return dict(zip(structure.keys, parts)) if structure.kind is dict else structure.kind(parts)


def compile_flat(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: Callable[[fx.GraphModule, Sequence[Any]], Any]
) -> Any:
    """Returns `compile_graph(gm, example_inputs)`; a graph with nested inputs is compiled for their leaves.

    The boxed callable then accepts nested values, and raises TypeError for values of another structure. Lists of a
    placeholder marked `steal_arg` are emptied before the call.
    """
    structures = [structure_of(example) for example in example_inputs]
    if not any(structure.is_nested for structure in structures):
        return compile_graph(gm, example_inputs)
    stolen = [bool(node.meta.get("steal_arg")) for node in gm.graph.nodes if node.op == "placeholder"]
    flat_examples = [leaf for example in example_inputs for leaf in leaves(example)]
    compiled = compile_graph(_flat_graph(gm, structures), flat_examples)

    def call(args: list[Any]) -> Any:
        if args.__class__ is not list:
            reject_unboxed(args)
        actual = [structure_of(value) for value in args]
        if actual != structures:
            expected, passed = (", ".join(map(str, each)) for each in (structures, actual))
            raise TypeError(f"structure mismatch: the graph was compiled for ({expected}), not for ({passed})")
        flat = [leaf for value in args for leaf in leaves(value)]
        for value, donated in zip(args, stolen):
            if donated:
                value.clear()
        args.clear()
        return compiled(flat)

    return mark_boxed(call)


def _flat_graph(gm: fx.GraphModule, structures: Sequence[Structure]) -> fx.GraphModule:
    """Returns `gm` with one placeholder per leaf. Item reads are resolved; only uses of a whole container build it."""
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    remaining = iter(structures)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            structure = next(remaining)
            names = [node.name] if structure.kind is None else [f"{node.name}_{i}" for i in range(structure.leaves)]
            env[node] = rebuild(structure, [graph.placeholder(name) for name in names])
        elif (element := _element(node, env)) is not None:
            env[node] = element
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    flat = fx.GraphModule(gm, graph)
    flat.meta = gm.meta  # the marks of tracer and backend
    return flat


def _element(node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
    """Returns the item that a node reads from a container of inputs; None for other nodes."""
    if node.target is not operator.getitem:
        return None
    owner, key = node.args
    container: Any = env[owner] if isinstance(owner, fx.Node) else None
    return container[key] if type(container) in (list, tuple, dict) else None


def as_sequence(value: Any) -> Sequence[Any]:
    """Returns a list or tuple unchanged, and any other value as a tuple of one item."""
    return value if isinstance(value, (list, tuple)) else (value,)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields each tensor in nested values, once per occurrence."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, slice):
        yield from tensors_in([value.start, value.stop, value.step])


def nodes_in(value: Any) -> list[fx.Node]:
    """Lists each node in nested values, once per occurrence."""
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)
    return nodes
