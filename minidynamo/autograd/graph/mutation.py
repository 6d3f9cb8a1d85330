"""Owns questions about writes of ATen operators: the arguments that an operator writes, the functional form of the
operator, and the in-place variants of a functional operator.

It reads schemas, and defines an operator where a functional form is missing. `functionalize` rewrites graphs;
`autograd/reinplace/reuse.py` decides whether a graph may call a variant.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.graph.custom_operators import define
from minidynamo.graph.pytree import as_sequence

aten = torch.ops.aten

# Operators with undeclared writes to arguments: the positions, and the functional operator.
# `aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)`
UNDECLARED: dict[OpOverload, tuple[tuple[int, ...], OpOverload]] = {
    aten.native_batch_norm.default: ((3, 4), aten._native_batch_norm_legit_functional.default),
}

# Functional operators whose name does not follow from that of the in-place operator; or the operator with that name
# returns its argument.
RENAMED = {
    "aten::normal_": "aten::normal_functional",
    "aten::zero_": "aten::zeros_like",
    "aten::conj_physical_": "aten::_conj_physical",
}

NUMBERS_PREFIX = "numbers_"
"""Name prefix of operators like those of ATen, with symbolic numbers in place of floats."""


@record(frozen=True)
class Mutation:
    """Writes of one operator."""

    #: Names of the written arguments, in schema order.
    arguments: tuple[str, ...]
    #: Per result: name of the returned argument; None for a new result.
    returns: tuple[str | None, ...]
    #: Operator returning the new results, then the new values of `arguments`; None without such an operator.
    functional: OpOverload | None
    #: Arguments unknown to the functional operator (`out=`).
    dropped: tuple[str, ...]

    @property
    def own_results(self) -> int:
        """Number of results besides the written arguments."""
        return self.returns.count(None)


def is_torch_operator(op: Any) -> bool:
    """Returns whether `op` is an operator of torch, or a replacement with symbolic numbers."""
    if not isinstance(op, OpOverload):
        return False
    own = op.namespace == "minidynamo" and op.overloadpacket.__name__.startswith(NUMBERS_PREFIX)
    return own or op.namespace == "aten"


def is_undeclared_write(op: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether `op` with these arguments writes to running statistics without declaring the write."""
    return op in UNDECLARED and bool(args[5]) and args[3] is not None


@functools.cache
def mutation_of(op: OpOverload) -> Mutation | None:
    """Returns the writes of `op` by schema; None for an operator without writes to tensors: `add_.t` extends a list."""
    schema = compat.schema_of(op)
    written = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    written = [arg for arg in written if "Tensor" in str(arg.type)]
    if not written:
        return None
    marks = {mark: arg.name for arg in written for mark in arg.alias_info.before_set}
    returns = tuple(r.alias_info and marks[next(iter(r.alias_info.before_set))] for r in schema.returns)
    dropped = tuple(arg.name for arg in written if arg.is_out)
    names = tuple(arg.name for arg in written)
    functional = _functional_variant(op, dropped, returns.count(None) + len(written))
    if functional is None and not is_metadata_mutation(op):
        functional, dropped = define_functional(op), ()
    return Mutation(names, returns, functional, dropped)


def _functional_variant(op: OpOverload, dropped: tuple[str, ...], results: int) -> OpOverload | None:
    schema = compat.schema_of(op)
    namespace, _, name = schema.name.partition("::")
    stem = name.removesuffix("_")
    names = [RENAMED.get(schema.name, "").partition("::")[2], stem, f"{stem}_functional", f"{name}_functional"]
    needed_types = [str(arg.type) for arg in schema.arguments if arg.name not in dropped]
    library = getattr(torch.ops, namespace)
    for candidate in filter(None, names):
        packet = getattr(library, candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            variant: OpOverload = getattr(packet, overload)
            candidate_schema = compat.schema_of(variant)
            if candidate_schema.is_mutable or len(candidate_schema.returns) != results:
                continue
            types = [str(arg.type) for arg in candidate_schema.arguments]
            if types[: len(needed_types)] == needed_types and all(
                arg.has_default_value() for arg in candidate_schema.arguments[len(needed_types) :]
            ):
                return variant
    return None


@functools.cache
def is_view(op: OpOverload) -> bool:
    """Returns whether each result of `op` is a view of its first argument, by the schema."""
    schema = compat.schema_of(op)
    returns = schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def is_metadata_mutation(op: OpOverload) -> bool:
    """Returns whether `op` changes an argument's shape, strides or storage rather than data."""
    return torch.Tag.inplace_view in op.tags or op in METADATA_WRITES


# How a schema marks an argument that is written or viewed: `(a!)`, `(a -> *)`.
_MARK = r"\(\w+!?(?: -> [^)]*)?\)"


def define_functional(op: OpOverload) -> OpOverload | None:
    """Defines a functional form of a custom operator: it copies the arguments that `op` writes, runs `op` on the
    copies, and returns the results, then the copies. Returns None if a written argument may be None."""
    schema = compat.schema_of(op)
    written = [arg.name for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    text, _, returned = str(schema).partition("(")[2].rpartition(") -> ")
    parameters = re.sub(_MARK, "", text)
    types = [re.findall(rf"(\S+) {name}\b", parameters)[0] for name in written]
    if any("?" in part for part in types):
        return None
    new_results = [part for part in returned.strip("()").split(", ") if part and not re.search(_MARK, f"{part})")]
    name = re.sub(r"\W", "_", f"functional_{schema.name}_{schema.overload_name}")

    def run(*args: Any, **kwargs: Any) -> Any:
        named = named_arguments(op, args, kwargs)
        copies = {key: _copied(named[key]) for key in written}
        returned = op(**{**named, **copies})
        results = (
            *(returned[: len(new_results)] if isinstance(returned, tuple) else [returned] * len(new_results)),
            *copies.values(),
        )
        return results[0] if len(results) == 1 else results

    return define(name, f"({parameters}) -> ({', '.join(new_results + types)})", run)


def arguments_from_out(out: torch.Tensor, missing: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of a functional form taken from the output of a call with `out=`: numbers are created, and
    summed, in the dtype of the output."""
    return {name: getattr(out, name) for name in ("dtype", "device") if name in missing}


def write_undeclared_outputs(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], traced: Iterable[fx.Node]
) -> bool:
    """Writes the results of a call with `out=` to the outputs if no `traced` operation does; returns whether a write
    was necessary. Some functions write through undeclared aliases, or return new tensors instead while they are
    traced."""
    out = kwargs.get("out")
    outputs = [t for t in as_sequence(out) if isinstance(t, torch.Tensor)]
    if not outputs or not all(t.numel() for t in outputs) or any(map(_writes, traced)):
        return False
    results = function(*args, **{key: value for key, value in kwargs.items() if key != "out"})
    for old, new in zip(outputs, as_sequence(results)):
        old.copy_(new)
    return True


def _writes(node: fx.Node) -> bool:
    """Returns whether an operation writes to memory with known aliases."""
    mutation = mutation_of(node.target) if isinstance(node.target, OpOverload) else None
    if mutation is None:
        return False
    named = named_arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    written = [named[name] for name in mutation.arguments]
    return not any(isinstance(arg, fx.Node) and arg.target is aten._unsafe_view.default for arg in written)


def _copied(value: Any) -> Any:
    return [item.clone() for item in value] if isinstance(value, (list, tuple)) else value.clone()


METADATA_WRITES = frozenset(
    {aten.set_.source_Tensor, aten.set_.source_Storage, aten.resize_.default, aten.resize_as_.default}
)


def named_arguments(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments by their schema names, including defaults."""
    schema = compat.schema_of(op).arguments
    defaults = {arg.name: arg.default_value for arg in schema if arg.has_default_value()}
    return defaults | {arg.name: value for arg, value in zip(schema, args)} | kwargs


@record(frozen=True)
class InplaceVariant:
    """An operator that computes the same as a functional operator, but writes it to arguments."""

    #: The operator that writes.
    op: OpOverload
    #: Positions of the written arguments, in the order of the functional results.
    written: tuple[int, ...]
    #: Number of functional results before the new data of `written`; `op` returns only these.
    own_results: int
    #: Names of its arguments.
    names: tuple[str, ...]

    def call(self, functional: OpOverload, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Returns the arguments of `op` for the call `node` of the functional operator; None if `op` takes fewer."""
        functional_names = [arg.name for arg in compat.schema_of(functional).arguments]
        if len(node.args) > len(self.names) or any(
            functional_names.index(name) >= len(self.names) for name in node.kwargs
        ):
            return None
        return node.args, {self.names[functional_names.index(name)]: value for name, value in node.kwargs.items()}


@functools.cache
def inplace_variant_of(functional: OpOverload) -> InplaceVariant | None:
    """Returns the in-place variant of an operator of torch, or of a replacing number operator; None without variant."""
    if not is_torch_operator(functional):
        return None
    for op in _overloads(getattr(torch.ops, functional.namespace), functional.overloadpacket.__name__):
        mutation = mutation_of(op)
        if mutation is not None and mutation.functional is functional and not mutation.dropped:
            names = tuple(arg.name for arg in compat.schema_of(op).arguments)
            if _returns_writes_or_own(mutation):
                written = tuple(names.index(name) for name in mutation.arguments)
                return InplaceVariant(op, written, mutation.own_results, names)
    return None


def in_place(node: fx.Node) -> OpOverload | None:
    """Returns the in-place operator that takes the arguments of `node` and writes the result over the first argument;
    None without such an operator."""
    variant = inplace_variant_of(node.target) if isinstance(node.target, OpOverload) else None
    if (
        variant is None
        or variant.own_results
        or variant.written != (0,)
        or not isinstance(node.meta.get("val"), torch.Tensor)
    ):
        return None
    return variant.op if variant.call(node.target, node) == (node.args, node.kwargs) else None  # type: ignore[arg-type]


def _overloads(library: Any, name: str) -> Iterator[OpOverload]:
    stem = name.removesuffix("_functional")
    for candidate in {f"{name}_": 0, f"{stem}_": 0} | ({} if stem == name else {stem: 0}):
        packet = getattr(library, candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            yield getattr(packet, overload)


def _returns_writes_or_own(mutation: Mutation) -> bool:
    """Returns whether an operator returns either all written arguments, or only results of its own."""
    return mutation.returns in ((), mutation.arguments) or not any(mutation.returns)
