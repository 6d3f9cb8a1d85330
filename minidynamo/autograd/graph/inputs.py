"""Owns the conversion of the inputs of a captured graph, which may be lists, to one flat list of values.

Data of tensors is not read. The layout is computed once per compile; each call only compares lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from minidynamo.core.records import record
from minidynamo.graph.boxed import BoxedCallable, mark_boxed, reject_unboxed
from minidynamo.graph.boxed_text import BoxedText, Call, Line, Pack, load


@record(frozen=True)
class InputLayout:
    """The single values and lists among the inputs. Each field has one item per placeholder."""

    #: Names of the placeholders.
    names: tuple[str, ...]
    #: Number of elements of a list; None for a single value.
    lengths: tuple[int | None, ...]
    #: Whether the list was donated.
    donated: tuple[bool, ...]

    def flat_names(self) -> tuple[str, ...]:
        """Returns a name for each value of the flat list."""
        names: list[str] = []
        for name, length in zip(self.names, self.lengths):
            names += [name] if length is None else [f"{name}_{i}" for i in range(length)]
        return tuple(names)

    def flatten(self, values: Sequence[Any]) -> list[Any]:
        """Returns the flat list of `values`, given one value or list per placeholder."""
        flat: list[Any] = []
        for value, length in zip(values, self.lengths):
            flat += [value] if length is None else value
        return flat

    def unflatten(self, flat: Sequence[Any]) -> list[Any]:
        """Reverses `flatten`; lists are new."""
        values: list[Any] = []
        rest = list(flat)
        for length in self.lengths:
            values.append(rest[0] if length is None else rest[:length])
            del rest[: 1 if length is None else length]
        return values

    def donated_inputs(self) -> tuple[int, ...]:
        """Returns positions in the flat list of elements from donated lists."""
        owners = [
            donated
            for length, donated in zip(self.lengths, self.donated)
            for _ in range(1 if length is None else length)
        ]
        return tuple(i for i, donated in enumerate(owners) if donated)


def layout_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> InputLayout:
    """Returns the layout of the placeholders of `gm`, given one example per placeholder."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    lengths = tuple(len(example) if isinstance(example, list) else None for example in example_inputs)
    donated = tuple(bool(node.meta.get("steal_arg")) for node in nodes)
    return InputLayout(tuple(node.name for node in nodes), lengths, donated)


def flatten_inputs(layout: InputLayout, call: BoxedCallable) -> BoxedCallable:
    """Builds a boxed callable that takes values as in `layout` and passes a flat list to `call`.

    Donated lists are emptied before the call, so only `call` owns the elements. Raises TypeError if a list does not
    have the compiled length. Without lists it returns `call` itself.
    """
    if all(length is None for length in layout.lengths):
        return call
    names = [f"a{i}" for i in range(len(layout.names))]
    lists = [(name, length) for name, length in zip(names, layout.lengths) if length is not None]
    items = [name if length is None else f"*{name}" for name, length in zip(names, layout.lengths)]
    lines: list[Line] = [
        *(f"if not isinstance({name}, list) or len({name}) != {n}: mismatch({name}, {n})" for name, n in lists),
        Pack("flat", ", ".join(items)),
        *(f"{name}.clear()" for name, donated in zip(names, layout.donated) if donated),
        f"del {', '.join(names)}",
        Call("lower", "flat", "return "),
    ]
    unpack = [
        "if args.__class__ is not list:",
        "    reject_unboxed(args)",
        f"{', '.join(names)}, = args",
        "args.clear()",
    ]
    source = "\n".join(["def call(args):", *(f"    {line}" for line in (*unpack, *lines)), ""])
    namespace = {"lower": call, "mismatch": reject_structure, "reject_unboxed": reject_unboxed}
    return load("runtime", "flatten", source, BoxedText(tuple(names), tuple(lines)), namespace, "call")


def unflatten_inputs(layout: InputLayout, call: BoxedCallable) -> BoxedCallable:
    """Reverses `flatten_inputs`: a boxed callable that takes a flat list and passes values as in `layout` to `call`."""

    def run(flat: list[Any]) -> Any:
        args = layout.unflatten(flat)
        flat.clear()
        return call(args)

    return mark_boxed(run)


def reject_structure(value: object, length: int) -> None:
    """Raises TypeError for an argument unlike the list of the compiled call."""
    description = f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__
    raise TypeError(f"structure mismatch: the graph was compiled for a list of {length} values, not for {description}")
