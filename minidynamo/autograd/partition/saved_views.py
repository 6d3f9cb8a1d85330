"""Owns which values that backward takes are parts of something else that lives until then.

That is a result, say, which the program has written in part. Eager keeps views of it, and so does a compiled graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder, fake, gives_alike, same_layout
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.autograd.graph.views import PARTS
from minidynamo.memory.unfused_peak import WRITTEN

aten = torch.ops.aten

Step = tuple[Any, tuple[Any, ...]]
Part = tuple[fx.Node, list[Step]]
"""Something that is kept, and the views of it, each with its further arguments, that lead to a part."""


def kept_parts(kept: Iterable[fx.Node], lasting: Collection[fx.Node]) -> dict[fx.Node, Part]:
    """Those of `kept` that the program has computed where parts of something in `lasting` lie."""
    found = {}
    for node in kept:
        part = _part(node, lasting)
        if part is not None and _is_read_alike(node, part):
            found[node] = part
    return found


def view_of(graph: fx.Graph, part: Part, env: Mapping[fx.Node, fx.Node], like: fx.Node) -> fx.Node:
    """A part, at the end of `graph`, where `env` has what became of each node."""
    made, steps = part
    made = env[made]
    for op, args in steps:
        fakes = _applied(op, made.meta["val"], args)
        made = graph.call_function(op, (made, *fx.map_arg(args, env.__getitem__)))
        made.meta = {**like.meta, "val": fakes}
    return made


def fake_view(part: Part) -> torch.Tensor:
    """The fake value of a part."""
    value = part[0].meta["val"]
    for op, args in part[1]:
        value = _applied(op, value, args)
    return value  # type: ignore[no-any-return]


def _part(node: fx.Node, lasting: Collection[fx.Node], is_view: bool = False) -> Part | None:
    """Where `node` lies in something that lasts. `is_view`: it views what the program has written, all of it."""
    if not is_view and node.meta.get(WRITTEN) != {0: 0}:
        return None
    for user in node.users:
        step = _step(node, user)
        if step is not None:
            part = (user, []) if user in lasting else _part(user, lasting, user.target not in PARTS)
            if part is not None:
                return part[0], [*part[1], step]
    return None


def _step(node: fx.Node, user: fx.Node) -> Step | None:
    """How `node` is found in `user`, which it has become a part of, or all."""
    if user.target in PARTS and user.args[1] is node and WRITTEN in user.meta and not user.kwargs:
        return PARTS[user.target], user.args[2:]
    if node.target not in PARTS or user.target not in (aten.view.default, aten.t.default, aten.transpose.int):
        return None
    shape = [*node.meta["val"].shape]
    if any(map(is_symbolic, shape)):
        return None
    return user.target, (shape,) if user.target is aten.view.default else user.args[1:]


def _is_read_alike(node: fx.Node, part: Part) -> bool:
    """Whether the readers of `node` give the same, in the same layout, if they read it where it lies."""
    value = fake_view(part)
    if same_layout(node.meta["val"], value):
        return True
    there = fx.Graph().placeholder(node.name)
    there.meta["val"] = value
    return all(user.target in PARTS or gives_alike(user, node, there) for user in node.users)


def _applied(op: Any, value: torch.Tensor, args: tuple[Any, ...]) -> Any:
    with GraphBuilder(value.fake_mode, fx.Graph()).computing(), torch.no_grad():  # type: ignore[attr-defined]
        return op(value, *fake(args))
