"""Owns changes of single calls while the joint graph is traced: explicit ends of slices, and matrix decompositions
without vectors.

Torch drops slices of a whole dimension, such as the first slice of `x[:, 0]`, from a key of several items if the size
is a number. For a symbolic size torch cannot prove that the size is below the largest integer, the default end of a
slice. Each slice would then get a gradient: a tensor of zeros, and a copy. Torch can prove that a size is not above
itself, so the end is written into the slice.

Torch computes only singular values or eigenvalues if no gradient needs the vectors. For fake tensors torch always
assumes a gradient, and traces the whole decomposition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from minidynamo import compat
from minidynamo.compat import OpOverload
from minidynamo.graph.pytree import tensors_in
from minidynamo.graph.unbacked_symints import SUBSCRIPTS, dimensions


def with_ends(target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Returns the arguments of a call; a subscript gets explicit ends in slices that take a whole dimension."""
    if target not in SUBSCRIPTS or type(args[1]) is not tuple or not isinstance(args[0], torch.Tensor):
        return args
    shape, key = args[0].shape, [*args[1]]
    positions = [position for position, item in enumerate(key) if _takes_whole_dimension(item)]
    ranges = (
        dimensions([args[0], tuple(slice(None) if _is_list(item) else item for item in key)]) if positions else None
    )
    if ranges is None:
        return args
    for position in positions:
        size = shape[ranges[position][0]]
        key[position] = slice(None, size) if isinstance(size, torch.SymInt) else key[position]
    return [args[0], tuple(key), *args[2:]]


def _takes_whole_dimension(item: Any) -> bool:
    return isinstance(item, slice) and _is_default(item.start, 0) and item.stop is None and _is_default(item.step, 1)


def _is_default(number: Any, default: int) -> bool:
    return number is None or (type(number) is int and number == default)


def _is_list(item: Any) -> bool:
    """Returns whether an item selects along one dimension by a list of positions."""
    return isinstance(item, list) and all(type(index) is int for index in item)


aten = torch.ops.aten

# Operator -> position of the singular values or eigenvalues among its results.
_VALUES: dict[Any, int] = {
    aten._linalg_svd.default: 1,
    aten._linalg_eigh.default: 0,
    aten.linalg_eig.default: 0,
}


def without_vectors(traced: Iterable[fx.Node], arguments: Any, result: Any) -> None:
    """Removes unused vectors from the decompositions among the `traced` nodes of one call.

    `arguments` and `result` are those of the call. Vectors stay if the call or its result uses the
    vectors, or if eager would compute the vectors.
    """
    decompositions = [node for node in traced if node.target in _VALUES]
    if not decompositions or (torch.is_grad_enabled() and any(value.requires_grad for value in tensors_in(arguments))):
        return
    returned = set(map(compat.memory_of, tensors_in(result)))
    for node in decompositions:
        position = _VALUES[node.target]
        vectors = [user for user in node.users if user.args[1] != position]
        storages = {compat.memory_of(user.meta["val"]) for user in vectors}
        if not any(user.users for user in vectors) and returned.isdisjoint(storages):
            _remove_vectors(node, position, vectors)


def _remove_vectors(node: fx.Node, position: int, vectors: list[fx.Node]) -> None:
    values = next((user for user in node.users if user.args[1] == position), None)
    if values is None:
        return
    for user in vectors:
        node.graph.erase_node(user)
    if node.target is aten.linalg_eig.default:
        values.target, values.args = aten._linalg_eigvals.default, node.args
        node.graph.erase_node(node)
        return
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in compat.schema_of(node.target).arguments]
    flag = "compute_uv" if "compute_uv" in names else "compute_v"
    defaults = [argument.default_value for argument in compat.schema_of(node.target).arguments]
    flag_position = names.index(flag)
    node.args = (*node.args, *defaults[len(node.args) : flag_position], False, *node.args[flag_position + 1 :])
    results = node.meta["val"]
    with disable_proxy_modes_tracing():
        node.meta["val"] = tuple(value if i == position else value.new_empty(0) for i, value in enumerate(results))
