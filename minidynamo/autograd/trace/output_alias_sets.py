"""Owns the classification of a traced program's outputs: inputs, views of inputs, or members of alias sets.

`joint.py` calls the functions during the trace, while the tensors are part of autograd's graph.
`autograd/functional/outputs.py` plans how to make the outputs from the results of a compiled graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.numbers import is_symbolic, key, simplified
from minidynamo.autograd.graph.provenance import line_of_node
from minidynamo.autograd.trace.grad_graph_queries import nearest_view
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused, UserLocation, located
from minidynamo.graph.function_results import CopiedResult


@record
class TracedOutput:
    """Describes an output of the user's graph, or an intermediate tensor between an output and the owner of
    its memory."""

    #: "constant"; "number": known only when the graph runs; "input": that very object; "view": shares memory with an
    #: input; "member": of an alias set.
    kind: Literal["constant", "number", "input", "view", "member"]
    #: The input ("input", "view") or the alias set ("member").
    index: int = 0
    #: The value of a "constant".
    value: Any = None
    requires_grad: bool = False
    #: Whether the tensor has a gradient function.
    has_history: bool = False
    is_view: bool = True
    #: Position of the viewed tensor, if an output or intermediate is viewed; outputs are counted first.
    source: int | None = None
    #: The version counter, if the tensor does not share the counter of its memory (`y.data`).
    writes: int | None = None
    #: How the view was created; decides which writes autograd refuses.
    creation: str | None = None
    node: fx.Node | None = None

    @property
    def no_grad(self) -> bool:
        """Returns whether this is a view made with the grad mode off: it requires grad, but no gradient flows."""
        return self.requires_grad and not self.has_history


@record
class OutputAliasSet:
    """Outputs that share memory with each other and with no input."""

    #: The tensor that all members are, or are views of; None if autograd knows none and there are several members.
    root: torch.Tensor | None
    #: A tensor that shares the version counter of the memory.
    counter_owner: torch.Tensor
    requires_grad: bool = False
    #: The version counter of `counter_owner`; None for inference tensors.
    writes: int | None = 0
    #: Whether torch knows the root as a view of yet another tensor.
    is_view: bool = True
    node: fx.Node | None = None


def classify(
    outputs: Sequence[Any], inputs: Mapping[int, torch.Tensor], lines: Sequence[UserLocation | None] = ()
) -> tuple[list[TracedOutput], list[OutputAliasSet]]:
    """Returns one entry per output, and the alias sets of the outputs. `inputs` are the tensor inputs by position,
    `lines` the user's lines of the outputs.

    Raises GraphRefused MD404 for outputs that cannot be made from the results of a single compiled graph.
    """
    input_by_id = {id(value): i for i, value in inputs.items()}
    input_by_memory = {compat.memory_of(value): i for i, value in inputs.items()}
    members: dict[Any, list[torch.Tensor]] = {}
    last_lines: dict[Any, UserLocation | None] = {}
    entries = []
    for value, line in itertools.zip_longest(outputs, lines):
        with located(line):
            entry = _classified(value, input_by_id, input_by_memory, inputs)
        if entry is None:
            memory = compat.memory_of(value)
            members.setdefault(memory, []).append(value)
            last_lines[memory] = line
            entry = _traced("member", list(members).index(memory), value)
        entries.append(entry)
    alias_sets = []
    for memory, tensors in members.items():
        with located(last_lines[memory]):
            alias_sets.append(_alias_set(tensors))
    return entries, alias_sets


def _classified(
    value: Any, input_by_id: Mapping[int, int], input_by_memory: Mapping[Any, int], inputs: Mapping[int, torch.Tensor]
) -> TracedOutput | None:
    """Returns the entry of an output; None for a member of an alias set."""
    if is_symbolic(value):
        return TracedOutput("number")
    if not isinstance(value, torch.Tensor):
        return TracedOutput("constant", value=simplified(value))
    if id(value) in input_by_id:
        return TracedOutput("input", input_by_id[id(value)])
    if not compat.knows_history(value):
        raise _cannot_rebuild(
            "an output is a view that was made under `no_grad`, and its base was written to outside of `no_grad`"
        )
    if _is_detached_view(value):
        raise _cannot_rebuild("an output is a view of a view that was made with the grad mode off")
    index = input_by_id.get(id(value._base), input_by_memory.get(compat.memory_of(value)))
    if index is None:
        return None
    if value.requires_grad and not inputs[index].requires_grad:
        raise _cannot_rebuild("an output shares memory with an input, but not its gradient history")
    return _traced("view", index, value)


def find_sources(
    outputs: Sequence[Any],
    entries: Sequence[TracedOutput],
    alias_sets: Sequence[OutputAliasSet],
    inputs: Mapping[int, torch.Tensor],
) -> tuple[list[torch.Tensor], list[TracedOutput]]:
    """Sets `source` and `writes` of the entries.

    Returns the intermediate tensors between outputs and the owners of their memory, as torch exposes the tensors
    (`x.detach()`, if `x.detach()[0]` is returned), and an entry for each.
    """
    values, entry_of = [*outputs], [*entries]
    for position, value in enumerate(values):  # the list grows
        entry = entry_of[position]
        if entry.kind not in ("view", "member") or compat.version_of(value) is None:
            continue
        same_memory = {i: values[i] for i, e in enumerate(entry_of) if (e.kind, e.index) == (entry.kind, entry.index)}
        owner = inputs[entry.index] if entry.kind == "view" else alias_sets[entry.index].root
        if value is owner:
            continue
        others = {i: other for i, other in same_memory.items() if other is not value and other is not owner}
        base, counter_owner = value._base, alias_sets[entry.index].counter_owner if owner is None else owner
        if value.requires_grad:
            assert owner is not None  # a member with history has a root
            entry.source = nearest_view(value, others, owner)
        elif base is None and not _share_version_counter(value, counter_owner):
            earlier = (i for i, other in others.items() if i < position and other._base is None)
            entry.source = next((i for i in earlier if _share_version_counter(value, values[i])), None)
            entry.writes = value._version if entry.source is None else None
        elif base is not None and not _is_owner_or_its_base(owner, base) and compat.share_memory(base, value):
            entry.source = next((i for i, other in others.items() if other is base), len(values))
            if entry.source == len(values):
                values.append(base)
                entry_of.append(_traced(entry.kind, entry.index, base))
    return values[len(outputs) :], entry_of[len(outputs) :]


def _is_owner_or_its_base(owner: torch.Tensor | None, base: torch.Tensor) -> bool:
    """Returns whether `base` is `owner`, or the base of `owner`."""
    return owner is not None and (base is owner or base is owner._base)


def _share_version_counter(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors share a version counter."""
    count = compat.version_of(a)
    if a is b or count is None or count != compat.version_of(b):
        return a is b
    compat.set_versions([a], [count + 1])
    is_shared = compat.version_of(b) != count
    compat.set_versions([a], [count])
    return is_shared


def refuse_copies(copies: Sequence[CopiedResult], outputs: Sequence[Any], inputs: Mapping[int, torch.Tensor]) -> None:
    """Raises GraphRefused MD404 if the program could notice that results of its autograd functions are copies.

    In eager such a result shares memory with an argument. The program notices the copy if the memory belongs to an
    input or to an output, or if the program writes to the memory.
    """
    for copied in copies:
        if copied.is_written:
            what = "a torch.autograd.Function returns a view of an argument, and the view or the argument is written to"
            raise _cannot_rebuild(what, line_of_node(copied.call))
    eager_memory: dict[Any, Any] = {}
    # Memory of the copy -> memory of the result in eager; for nested functions, the memory of the first result.
    for copied in copies:
        owner = compat.memory_of(copied.result)
        eager_memory[compat.memory_of(copied.copy)] = eager_memory.get(owner, owner)
    returned = {compat.memory_of(value) for value in outputs if isinstance(value, torch.Tensor)}
    for copied in copies:
        if compat.memory_of(copied.copy) in returned and not copied.has_equal_strides:
            what = "an output of a torch.autograd.Function has elements that share memory"
            raise _cannot_rebuild(what, line_of_node(copied.call))
    memories = returned | {compat.memory_of(value) for value in inputs.values()}
    shared = [eager_memory[memory] for memory in memories if memory in eager_memory]
    if len({*shared}) < len(shared) or not memories.isdisjoint(shared):
        call = next(copied.call for copied in copies if compat.memory_of(copied.copy) in memories)
        raise _cannot_rebuild(
            "an output shares memory with the argument of a torch.autograd.Function", line_of_node(call)
        )


def _traced(kind: Literal["view", "member"], index: int, value: torch.Tensor) -> TracedOutput:
    has_history = value.grad_fn is not None
    is_view = value._is_view() or value.is_inference()
    creation = compat.creation_of(value)
    return TracedOutput(kind, index, None, value.requires_grad, has_history, is_view, creation=creation)


def _alias_set(members: list[torch.Tensor]) -> OutputAliasSet:
    root = _root_of(members)
    if root is None:
        counter_owner = _counter_owner(members)
        return OutputAliasSet(None, counter_owner, writes=compat.version_of(counter_owner))
    is_view = root._is_view() or root.is_inference()
    return OutputAliasSet(root, root, root.requires_grad, compat.version_of(root), is_view)


def _counter_owner(members: list[torch.Tensor]) -> torch.Tensor:
    """Returns a member with the version counter of the common memory: a counter that several members share."""
    groups: list[list[torch.Tensor]] = []
    for member in members:
        group = next((group for group in groups if _share_version_counter(group[0], member)), None)
        if group is None:
            groups.append([member])
        elif not any(member is other for other in group):
            group.append(member)
    several = [group for group in groups if len(group) > 1] or groups[:1]
    if len(several) > 1:
        raise _cannot_rebuild("outputs are parts of one memory, but do not share a version counter")
    return several[0][0]


def _root_of(members: list[torch.Tensor]) -> torch.Tensor | None:
    """Returns the tensor that `members` of one memory are, or are views of; None if torch knows no such tensor."""
    if len({id(member) for member in members}) == 1 and not is_differentiable_view(members[0]):
        base = members[0]._base
        is_copied = compat.creation_of(members[0]) == compat.IN_CUSTOM_FUNCTION  # into a copy of its base
        return members[0] if base is None or (_is_unchanged_result(base) and not is_copied) else base
    roots = [_autograd_root(member) for member in members]
    if differentiable := {id(root): root for root in roots if root.requires_grad}:
        if len(differentiable) > 1:
            raise _cannot_rebuild("outputs share memory, but each has a gradient history of its own")
        return next(iter(differentiable.values()))
    if any(member.is_inference() for member in members):  # inference tensors do not record their base
        return None
    candidates = [*(root for root, member in zip(roots, members) if root is not member), *roots]
    root = next(filter(_is_whole, candidates), candidates[0])
    is_partial = not _is_whole(root) and not all(same_layout(own, root, memory=True) for own in roots)
    if is_partial and not any(member.requires_grad for member in members):
        return None  # the whole tensor is not among the outputs
    if any(root is member for member in members):
        return root
    # If only views of the root are left, a member with the same data can be returned in its place.
    return next((m for m, own in zip(members, roots) if own is m and same_layout(m, root, memory=True)), root)


def _is_whole(value: torch.Tensor) -> bool:
    """Returns whether `value` covers all of its memory."""
    return bool(key(value.numel() * value.itemsize) == key(value.untyped_storage().nbytes()))


def _is_unchanged_result(base: torch.Tensor) -> bool:
    """Returns whether `base` covers all of its memory and was never written to.

    Such a base is the result of an operation, and the graph makes views of the same tensor.
    """
    return base._version == 0 and _is_whole(base)


def is_differentiable_view(value: torch.Tensor) -> bool:
    """Returns whether autograd propagates writes to `value` to its base; a compiled graph must return the base."""
    base = value._base
    return value.grad_fn is not None and base is not None and base.requires_grad


def _is_detached_view(value: torch.Tensor) -> bool:
    """Returns whether gradients of a view do not reach its base, because a view between them was made with the grad
    mode off."""
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


def _cannot_rebuild(what: str, where: UserLocation | None = None) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD404",
            what,
            why="A compiled graph gives its outputs one gradient function, so it cannot return such tensors.",
            fix="Return a copy: `return x, x.detach().clone()`.",
            where=where,
        )
    )
