"""Owns the check that all ranks have captured the same collectives, before the first of them runs.

Ranks that run different collectives wait for each other until the timeout of the process group. The check compares
the collectives through the store of the process group. The collectives as nodes are in `graph/collectives.py`.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.errors import Diagnostic, Unsupported, UserLocation
from minidynamo.graph.collectives import POINT_TO_POINT, is_collective
from minidynamo.graph.pytree import leaves

# A rank that has not captured the function by then is not compared: it may have nothing to capture.
_TIMEOUT = timedelta(seconds=10)

# Number of checks by group and name of the function.
_checks: Counter[tuple[str, str]] = Counter()


def check_ranks(graph: fx.GraphModule, name: str) -> None:
    """Raises Unsupported MD701 on every rank if another rank has captured other collectives in the function `name`."""
    nodes = [node for node in graph.graph.nodes if is_collective(node) and node.target not in POINT_TO_POINT]
    store = compat.default_store() if nodes else None
    if store is None:
        return
    groups = {node: group for node in nodes if (group := _group_of(node)) is not None}
    for group in dict.fromkeys(groups.values()):
        _check_group(store, group, name, [node for node in nodes if groups.get(node) == group])


def _check_group(store: Any, group: str, name: str, nodes: list[fx.Node]) -> None:
    own, ranks = torch.distributed.get_rank(), torch.distributed.get_process_group_ranks(compat.group_named(group))
    _checks[group, name] += 1
    keys = {rank: f"minidynamo/{group}/{name}/{_checks[group, name]}/{rank}" for rank in ranks}
    store.set(keys[own], json.dumps([(_description(node), _place(node)) for node in nodes]))
    try:
        store.wait([key for rank, key in keys.items() if rank != own], _TIMEOUT)
    except RuntimeError:
        return
    found = {rank: json.loads(store.get(key)) for rank, key in keys.items()}
    for other, calls in found.items():
        for mine, theirs in itertools.zip_longest(found[own], calls, fillvalue=("no further collective", name)):
            if mine[0] != theirs[0]:
                raise Unsupported(_differing(name, (own, *mine), (other, *theirs), nodes[0].meta.get("user_location")))


def _differing(
    name: str, mine: tuple[int, str, str], theirs: tuple[int, str, str], where: UserLocation | None
) -> Diagnostic:
    (first, *one), (second, *other) = sorted((mine, theirs))
    return Diagnostic(
        "MD701",
        f"the ranks captured different collectives in {name}",
        why=f"Rank {first}: {one[0]} ({one[1]}). Rank {second}: {other[0]} ({other[1]}). They would wait for ever.",
        fix="Call the same collectives in the same order on all ranks of a group.",
        where=where,
    )


def _group_of(node: fx.Node) -> str | None:
    """Returns the name of the group: the last text among the arguments. A wait has none."""
    texts = [leaf for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, str)]
    return texts[-1] if texts else None


def _description(node: fx.Node) -> str:
    """Returns the collective with its options and the types of its tensors. Lists, such as sizes of parts, may differ
    between ranks.
    """
    name = getattr(node.target, "__name__", "").removeprefix("_c10d_functional_").removesuffix("_default")
    return f"{name}({', '.join(_operands(node))})"


def _operands(node: fx.Node) -> Iterator[str]:
    for value in (*node.args, *node.kwargs.values()):
        if isinstance(value, str | int):
            yield str(value)
        elif isinstance(value, fx.Node) and isinstance(fake := value.meta.get("example_value"), torch.Tensor):
            yield str(fake.dtype).removeprefix("torch.")


def _place(node: fx.Node) -> str:
    return str(node.meta.get("user_location"))
