"""Owns inputs that are containers of containers: one flat graph for them, and the check of each call's structure.

What capture hands out has tensors and flat lists of tensors only, and its structure is guarded; this is for graphs that
somebody else made, with placeholders for nested lists, tuples and dicts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo.graph.boxed import mark_boxed, reject_unboxed


@dataclass(frozen=True)
class Structure:
    """What a value is made of. `kind` is list, tuple, one of `torch.return_types` or dict, or None for a leaf; `keys`
    are those of a dict."""

    kind: type | None = None
    parts: tuple[Structure, ...] = ()
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
        """How many leaves it has."""
        return 1 if self.kind is None else sum(part.leaves for part in self.parts)

    @property
    def is_nested(self) -> bool:
        """Whether it is more than a leaf or a list of leaves."""
        return self.kind in (tuple, dict) or any(part.kind is not None for part in self.parts)


def is_sequence_class(cls: type) -> bool:
    """Whether values of the class are looked into, part by part; it makes them of a list of parts."""
    return cls in (list, tuple) or cls.__module__ == "torch.return_types"


def structure_of(value: Any) -> Structure:
    """The structure of a value, looking into lists, tuples and dicts of exactly these classes, and what torch returns
    with names."""
    if type(value) is dict:
        return Structure(dict, tuple(map(structure_of, value.values())), tuple(value))
    if is_sequence_class(type(value)):
        return Structure(type(value), tuple(map(structure_of, value)))
    return Structure()


def leaves(value: Any) -> list[Any]:
    """The leaves of a value, in order."""
    if type(value) is dict:
        value = list(value.values())
    elif not is_sequence_class(type(value)):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def rebuild(structure: Structure, flat: Sequence[Any]) -> Any:
    """A value of this structure with these leaves."""
    return _rebuild(structure, list(reversed(flat)))


def _rebuild(structure: Structure, rest: list[Any]) -> Any:
    if structure.kind is None:
        return rest.pop()
    parts = [_rebuild(part, rest) for part in structure.parts]
    return dict(zip(structure.keys, parts)) if structure.kind is dict else structure.kind(parts)


def compile_flat(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: Callable[[fx.GraphModule, Sequence[Any]], Any]
) -> Any:
    """What `compile_graph(gm, example_inputs)` gives; a graph with nested inputs is compiled for their leaves.

    The boxed callable then takes nested values and raises TypeError for values of another structure. Lists whose
    placeholder says `steal_arg` are emptied before the call.
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
        came = [structure_of(value) for value in args]
        if came != structures:
            wanted, got = (", ".join(map(str, found)) for found in (structures, came))
            raise TypeError(f"structure mismatch: the graph was compiled for ({wanted}), not for ({got})")
        flat = [leaf for value in args for leaf in leaves(value)]
        for value, given_up in zip(args, stolen):
            if given_up:
                value.clear()
        args.clear()
        return compiled(flat)

    return mark_boxed(call)


def _flat_graph(gm: fx.GraphModule, structures: Sequence[Structure]) -> fx.GraphModule:
    """`gm` with a placeholder per leaf. Values are taken out of the containers; only what uses one whole gets one."""
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    given = iter(structures)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            structure = next(given)
            names = [node.name] if structure.kind is None else [f"{node.name}_{i}" for i in range(structure.leaves)]
            env[node] = rebuild(structure, [graph.placeholder(name) for name in names])
        elif (found := _element(node, env)) is not None:
            env[node] = found
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    flat = fx.GraphModule(gm, graph)
    flat.meta = gm.meta  # what the tracer and the backend tell each other
    return flat


def _element(node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
    """What an access to an item takes out of a container of inputs; None for every other node."""
    if node.target is not operator.getitem:
        return None
    owner, key = node.args
    container: Any = env[owner] if isinstance(owner, fx.Node) else None
    return container[key] if type(container) in (list, tuple, dict) else None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Each tensor among nested values, as often as it is there."""
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
    """Each node among nested values, as often as it is there."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
