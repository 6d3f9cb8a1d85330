"""Owns the saved values that are parts of another tensor, if the tensor lives until backward.

For example, the program has written the value into a part of a result. Eager saves a view of the result, and so does a
compiled graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder, fake, has_same_result_layout, same_layout
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.autograd.graph.views import SCATTER_VIEWS
from minidynamo.graph.marks import WRITTEN

aten = torch.ops.aten

Step = tuple[Any, tuple[Any, ...]]
Part = tuple[fx.Node, list[Step]]
"""A tensor that lives until backward, and the view steps (operator, further arguments) that lead to a part of it."""


def saved_parts(kept: Iterable[fx.Node], lasting: Collection[fx.Node]) -> dict[fx.Node, Part]:
    """Maps values of `kept` to parts of tensors in `lasting`, where the program has written the values."""
    parts = {}
    for node in kept:
        part = _part(node, lasting)
        if part is not None and _is_read_alike(node, part):
            parts[node] = part
    return parts


def view_of(graph: fx.Graph, part: Part, env: Mapping[fx.Node, fx.Node], like: fx.Node) -> fx.Node:
    """Emits a part at the end of `graph`; `env` maps each node to its copy."""
    viewed, steps = part
    viewed = env[viewed]
    for op, args in steps:
        fakes = _applied(op, viewed.meta["val"], args)
        viewed = graph.call_function(op, (viewed, *fx.map_arg(args, env.__getitem__)))
        viewed.meta = {**like.meta, "val": fakes}
    return viewed


def fake_view(part: Part) -> torch.Tensor:
    """Returns the fake value of a part."""
    value = part[0].meta["val"]
    for op, args in part[1]:
        value = _applied(op, value, args)
    return value  # type: ignore[no-any-return]


def _part(node: fx.Node, lasting: Collection[fx.Node], is_view: bool = False) -> Part | None:
    """Returns how `node` is a part of a lasting tensor; else None. `is_view`: `node` is a view of all of a written
    tensor."""
    if not is_view and node.meta.get(WRITTEN) != {0: 0}:
        return None
    for user in node.users:
        step = _step(node, user)
        if step is not None:
            part = (user, []) if user in lasting else _part(user, lasting, user.target not in SCATTER_VIEWS)
            if part is not None:
                return part[0], [*part[1], step]
    return None


def _step(node: fx.Node, user: fx.Node) -> Step | None:
    """Returns the view that finds `node` in `user`, if `user` contains `node`; else None."""
    if user.target in SCATTER_VIEWS and user.args[1] is node and WRITTEN in user.meta and not user.kwargs:
        return SCATTER_VIEWS[user.target], user.args[2:]
    if node.target not in SCATTER_VIEWS or user.target not in (aten.view.default, aten.t.default, aten.transpose.int):
        return None
    shape = [*node.meta["val"].shape]
    if any(map(is_symbolic, shape)):
        return None
    return user.target, (shape,) if user.target is aten.view.default else user.args[1:]


def _is_read_alike(node: fx.Node, part: Part) -> bool:
    """Returns whether the readers of `node` return the same values, in the same layout, when they read the part."""
    value = fake_view(part)
    if same_layout(node.meta["val"], value):
        return True
    substitute = fx.Graph().placeholder(node.name)
    substitute.meta["val"] = value
    return all(user.target in SCATTER_VIEWS or has_same_result_layout(user, node, substitute) for user in node.users)


def _applied(op: Any, value: torch.Tensor, args: tuple[Any, ...]) -> Any:
    with GraphBuilder(value.fake_mode, fx.Graph()).computing(), torch.no_grad():  # type: ignore[attr-defined]
        return op(value, *fake(args))
