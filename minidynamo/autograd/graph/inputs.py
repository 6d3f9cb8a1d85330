"""Owns the step from the inputs as the tracer passes them, lists among them, to one flat list of values.

It does not look inside tensors; the layout is computed once per compile, and each call only checks that it still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from minidynamo.core import artifacts
from minidynamo.graph.boxed import BoxedCallable, mark_boxed, reject_unboxed


@dataclass(frozen=True)
class InputLayout:
    """`names` and `lengths` per placeholder: None for a single value, the number of elements for a list. `stolen` are
    the placeholders whose lists were given up."""

    names: tuple[str, ...]
    lengths: tuple[int | None, ...]
    stolen: tuple[bool, ...]

    def flat_names(self) -> tuple[str, ...]:
        """A name for each value of the flat list."""
        names: list[str] = []
        for name, length in zip(self.names, self.lengths):
            names += [name] if length is None else [f"{name}_{i}" for i in range(length)]
        return tuple(names)

    def flatten(self, values: Sequence[Any]) -> list[Any]:
        """One flat list of `values`, one value or list per placeholder."""
        flat: list[Any] = []
        for value, length in zip(values, self.lengths):
            flat += [value] if length is None else value
        return flat

    def unflatten(self, flat: Sequence[Any]) -> list[Any]:
        """The reverse of `flatten`; lists are new."""
        values: list[Any] = []
        rest = list(flat)
        for length in self.lengths:
            values.append(rest[0] if length is None else rest[:length])
            del rest[: 1 if length is None else length]
        return values

    def given_up(self) -> tuple[int, ...]:
        """Positions in the flat list of elements whose lists were given up."""
        owners = [
            stolen for length, stolen in zip(self.lengths, self.stolen) for _ in range(1 if length is None else length)
        ]
        return tuple(i for i, stolen in enumerate(owners) if stolen)


def layout_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> InputLayout:
    """The layout of the placeholders of `gm`, one example per placeholder."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    lengths = tuple(len(example) if isinstance(example, list) else None for example in example_inputs)
    stolen = tuple(bool(node.meta.get("steal_arg")) for node in nodes)
    return InputLayout(tuple(node.name for node in nodes), lengths, stolen)


def flatten_inputs(layout: InputLayout, call: BoxedCallable) -> BoxedCallable:
    """A boxed callable that takes values as in `layout`, and hands a flat list to `call`.

    Lists that were given up are emptied before the call, so that nobody but `call` owns their elements. Raises
    TypeError when a list has another length than the compiled one. Without lists it is `call` itself.
    """
    if all(length is None for length in layout.lengths):
        return call
    names = [f"a{i}" for i in range(len(layout.names))]
    lists = [(name, length) for name, length in zip(names, layout.lengths) if length is not None]
    items = [name if length is None else f"*{name}" for name, length in zip(names, layout.lengths)]
    lines = [
        "def call(args):",
        "    if args.__class__ is not list:",
        "        reject_unboxed(args)",
        f"    {', '.join(names)}, = args",
        *(f"    if not isinstance({name}, list) or len({name}) != {n}: mismatch({name}, {n})" for name, n in lists),
        f"    flat = [{', '.join(items)}]",
        "    args.clear()",
        *(f"    {name}.clear()" for name, stolen in zip(names, layout.stolen) if stolen),
        f"    del {', '.join(names)}",
        "    return lower(flat)",
        "",
    ]
    namespace = {"lower": call, "mismatch": reject_structure, "reject_unboxed": reject_unboxed}
    return mark_boxed(artifacts.load("runtime", "flatten", "\n".join(lines), namespace, "call"))


def unflatten_inputs(layout: InputLayout, call: BoxedCallable) -> BoxedCallable:
    """The reverse of `flatten_inputs`: a boxed callable of a flat list that hands values as in `layout` to `call`."""

    def run(flat: list[Any]) -> Any:
        args = layout.unflatten(flat)
        flat.clear()
        return call(args)

    return mark_boxed(run)


def reject_structure(value: object, length: int) -> None:
    """Raise TypeError for an argument that is not the list that the graph was compiled for."""
    found = f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__
    raise TypeError(f"structure mismatch: the graph was compiled for a list of {length} values, not for {found}")
