"""Owns what the outputs of a traced program are: inputs, views of inputs, or members of families that share memory.

It looks at tensors that are still part of autograd's graph, so `joint.py` asks while it traces. How outputs are made
from what a compiled graph returns is planned in `autograd/functional/outputs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.numbers import is_symbolic, key, known
from minidynamo.autograd.trace.grad_graph_queries import view_behind
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph.function_results import CopiedResult


@dataclass
class TracedOutput:
    """One output of the user's graph. `index` counts inputs or families, by `kind`:

    "constant" (`value`), "number" (that is only known when the graph runs), "input" (that very object), "view" (shares
    memory with some input), "member" (of a family of outputs that share memory among themselves). `source` is what it
    is a view of, if that is another output, or stands between: its number there, the outputs first. `writes`: how often
    torch counts it as written, if that is not counted of what it shares memory with (`y.data`). `creation`: how a view
    was made, on which hangs what writes autograd refuses to it.
    """

    kind: Literal["constant", "number", "input", "view", "member"]
    index: int = 0
    value: Any = None
    requires_grad: bool = False
    has_history: bool = False
    is_view: bool = True
    source: int | None = None
    writes: int | None = None
    creation: str | None = None
    node: fx.Node | None = None

    @property
    def no_grad(self) -> bool:
        """Whether it is a view that was made with the grad mode off: it requires grad, but no gradient flows."""
        return self.requires_grad and not self.has_history


@dataclass
class OutputAliasSet:
    """Outputs that share memory with each other and with no input. `root` is the tensor all of them are, or are views
    of; None when autograd knows none and the members are several. `counting` is one that counts writes as their memory
    does, `writes` how often it has; `is_view`: torch knows the root as a view of yet another tensor."""

    root: torch.Tensor | None
    counting: torch.Tensor
    requires_grad: bool = False
    writes: int | None = 0
    is_view: bool = True
    node: fx.Node | None = None


def classify(
    outputs: Sequence[Any], inputs: Mapping[int, torch.Tensor]
) -> tuple[list[TracedOutput], list[OutputAliasSet]]:
    """What each output is, given the tensor inputs by number, and the families of those that share memory.

    Raises GraphRefused MD404 for outputs that cannot be made from what one compiled graph returns.
    """
    objects = {id(value): i for i, value in inputs.items()}
    owners = {compat.memory_of(value): i for i, value in inputs.items()}
    members: dict[Any, list[torch.Tensor]] = {}
    entries = []
    for value in outputs:
        if is_symbolic(value):
            entry = TracedOutput("number")
        elif not isinstance(value, torch.Tensor):
            entry = TracedOutput("constant", value=known(value))
        elif id(value) in objects:
            entry = TracedOutput("input", objects[id(value)])
        elif not compat.tells_history(value):
            raise _cannot_rebuild(
                "an output is a view from inside of `no_grad` whose base was written to outside of it"
            )
        elif _is_cut_off(value):
            raise _cannot_rebuild("an output is a view of one that was made with the grad mode off")
        elif (owner := objects.get(id(value._base), owners.get(compat.memory_of(value)))) is not None:
            entry = _traced("view", owner, value)
            if value.requires_grad and not inputs[owner].requires_grad:
                raise _cannot_rebuild("an output shares memory with an input, but not its gradient history")
        else:
            family = members.setdefault(compat.memory_of(value), [])
            family.append(value)
            entry = _traced("member", list(members).index(compat.memory_of(value)), value)
        entries.append(entry)
    families = [_family(group) for group in members.values()]
    return entries, families


def find_sources(
    outputs: Sequence[Any],
    entries: Sequence[TracedOutput],
    families: Sequence[OutputAliasSet],
    inputs: Mapping[int, torch.Tensor],
) -> tuple[list[torch.Tensor], list[TracedOutput]]:
    """Find out of which other output each output is a view. Returns the tensors that stand between outputs and what
    they share memory with, as torch shows them (`x.detach()`, where `x.detach()[0]` is returned), and what they are."""
    values, found = [*outputs], [*entries]
    for place, value in enumerate(values):  # which grows
        entry = found[place]
        if entry.kind not in ("view", "member") or compat.version_of(value) is None:
            continue
        relatives = {i: values[i] for i, e in enumerate(found) if (e.kind, e.index) == (entry.kind, entry.index)}
        holder = inputs[entry.index] if entry.kind == "view" else families[entry.index].root
        if value is holder:
            continue
        others = {i: other for i, other in relatives.items() if other is not value and other is not holder}
        base, counting = value._base, families[entry.index].counting if holder is None else holder
        if value.requires_grad:
            assert holder is not None  # members that autograd knows have a root
            entry.source = view_behind(value, others, holder)
        elif base is None and not _count_together(value, counting):
            equals = (i for i, other in others.items() if i < place and other._base is None)
            entry.source = next((i for i in equals if _count_together(value, values[i])), None)
            entry.writes = value._version if entry.source is None else None
        elif base is not None and not _is_of(holder, base) and compat.share_memory(base, value):
            entry.source = next((i for i, other in others.items() if other is base), len(values))
            if entry.source == len(values):
                values.append(base)
                found.append(_traced(entry.kind, entry.index, base))
    return values[len(outputs) :], found[len(outputs) :]


def _is_of(holder: torch.Tensor | None, base: torch.Tensor) -> bool:
    """Whether `base` is `holder`, or what that is a view of."""
    return holder is not None and (base is holder or base is holder._base)


def _count_together(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether writes to one tensor are counted as writes to the other."""
    count = compat.version_of(one)
    if one is other or count is None or count != compat.version_of(other):
        return one is other
    compat.set_versions([one], [count + 1])
    together = compat.version_of(other) != count
    compat.set_versions([one], [count])
    return together


def refuse_copies(copies: Sequence[CopiedResult], outputs: Sequence[Any], inputs: Mapping[int, torch.Tensor]) -> None:
    """Raise GraphRefused MD404 where somebody could tell that results of the user's functions are copies, while they
    share memory in eager: with an input or another output, with something that is written to, or among themselves."""
    if any(copied.is_written for copied in copies):
        raise _cannot_rebuild("a function of the user's returns a view of an argument, and one of them is written to")
    places: dict[Any, Any] = {}
    for copied in copies:  # the memory that each lies in in eager, and behind another function that of the first
        place = compat.memory_of(copied.result)
        places[compat.memory_of(copied.copy)] = places.get(place, place)
    returned = {compat.memory_of(value) for value in outputs if isinstance(value, torch.Tensor)}
    if any(compat.memory_of(copied.copy) in returned and not copied.is_laid_out_alike for copied in copies):
        raise _cannot_rebuild("an output has elements in the same memory, and a function of the user's returns it")
    memories = returned | {compat.memory_of(value) for value in inputs.values()}
    found = [places[memory] for memory in memories if memory in places]
    if len({*found}) < len(found) or not memories.isdisjoint(found):
        raise _cannot_rebuild("an output shares memory with the argument of a function of the user's")


def _traced(kind: Literal["view", "member"], index: int, value: torch.Tensor) -> TracedOutput:
    has_history = value.grad_fn is not None
    is_view = value._is_view() or value.is_inference()
    creation = compat.creation_of(value)
    return TracedOutput(kind, index, None, value.requires_grad, has_history, is_view, creation=creation)


def _family(members: list[torch.Tensor]) -> OutputAliasSet:
    root = _root_of(members)
    if root is None:
        counting = _counting(members)
        return OutputAliasSet(None, counting, writes=compat.version_of(counting))
    is_view = root._is_view() or root.is_inference()
    return OutputAliasSet(root, root, root.requires_grad, compat.version_of(root), is_view)


def _counting(members: list[torch.Tensor]) -> torch.Tensor:
    """The member that counts writes as the tensor does which all are parts of, so that several have it in common."""
    groups: list[list[torch.Tensor]] = []
    for member in members:
        group = next((group for group in groups if _count_together(group[0], member)), None)
        if group is None:
            groups.append([member])
        elif not any(member is other for other in group):
            group.append(member)
    several = [group for group in groups if len(group) > 1] or groups[:1]
    if len(several) > 1:
        raise _cannot_rebuild("outputs are parts of one memory, and do not count writes together")
    return several[0][0]


def _root_of(members: list[torch.Tensor]) -> torch.Tensor | None:
    """The tensor that `members` of one memory are, or are views of; None when torch knows none."""
    if len({id(member) for member in members}) == 1 and not is_differentiable_view(members[0]):
        base = members[0]._base
        is_copied = compat.creation_of(members[0]) == compat.IN_CUSTOM_FUNCTION  # into what stands for its base
        return members[0] if base is None or (_is_as_made(base) and not is_copied) else base
    roots = [_autograd_root(member) for member in members]
    if differentiable := {id(root): root for root in roots if root.requires_grad}:
        if len(differentiable) > 1:
            raise _cannot_rebuild("outputs share memory, but each has a gradient history of its own")
        return next(iter(differentiable.values()))
    if any(member.is_inference() for member in members):  # torch does not note there what a view is of
        return None
    candidates = [*(root for root, member in zip(roots, members) if root is not member), *roots]
    root = next(filter(_is_whole, candidates), candidates[0])
    in_parts = not _is_whole(root) and not all(same_layout(own, root, memory=True) for own in roots)
    if in_parts and not any(member.requires_grad for member in members):
        return None  # what they are parts of has not been returned
    if any(root is member for member in members):
        return root
    # What only views are left of may be the data of a member, which can be returned in its place.
    return next((m for m, own in zip(members, roots) if own is m and same_layout(m, root, memory=True)), root)


def _is_whole(value: torch.Tensor) -> bool:
    """Whether `value` is all of its memory."""
    return bool(key(value.numel() * value.itemsize) == key(value.untyped_storage().nbytes()))


def _is_as_made(base: torch.Tensor) -> bool:
    """Whether `base` is what some operation made, all of its memory and not written to: so the graph will have it, too,
    where it makes a view of it."""
    return base._version == 0 and _is_whole(base)


def is_differentiable_view(value: torch.Tensor) -> bool:
    """Whether autograd follows writes to `value` to what it is a view of; a compiled graph must return the latter."""
    base = value._base
    return value.grad_fn is not None and base is not None and base.requires_grad


def _is_cut_off(value: torch.Tensor) -> bool:
    """Whether gradients of a view do not reach what it is a view of: with the grad mode off a view was made between."""
    function, base = value.grad_fn, value._base
    if function is None or base is None or not base.requires_grad:
        return False
    while function is not None and function is not base.grad_fn:
        if not function.next_functions:
            return False
        function = function.next_functions[0][0]
    return function is None


def _autograd_root(value: torch.Tensor) -> torch.Tensor:
    return value if value._base is None else value._base


def _cannot_rebuild(what: str) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD404",
            what,
            why="A compiled graph gives its outputs one gradient function, so it cannot return such tensors.",
            fix="Return a copy: `return x, x.detach().clone()`.",
        )
    )
