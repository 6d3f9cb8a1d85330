"""Owns the prediction of the sizes and numbers that vary: after a graph break, in the function that is called at the
break, and in the tensors that a frame writes for its next call.

A resume function, and a function called at a break, are compiled separately and would see a varying size for the first
time. The facts that the frame before the break has found are passed on as a profile, which saves a second compile. The
profile is a guess: the effect of the instruction at the break is unknown. A wrong guess costs a symbol.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from minidynamo.bytecode.analysis import group_of
from minidynamo.bytecode.instructions import decode
from minidynamo.bytecode.layout import NULL, FramePoint
from minidynamo.compat import module_call
from minidynamo.guards.profile import NEEDS_CONSTANT, Fact, FrameProfile, relative_strides
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Attr, CellContents, Item, Local, Source, global_source, stable_name
from minidynamo.guards.varying_items import VaryingItems, fits, joined
from minidynamo.tracer.frames.unrolling import size_here
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.side_effects import AttrSet, CellSet, ContentsChanged, GlobalSet, SideEffects
from minidynamo.tracer.records.traced_frame import Break, Null, TracedFrame
from minidynamo.variables.base import NumberVariable, VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, MethodVariable, NestedFunctionVariable
from minidynamo.variables.containers import DictVariable, ListVariable, NewEntries, SequenceVariable, Slots
from minidynamo.variables.objects import ModuleVariable, OpaqueVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

# The codes of breaks at instructions that compute a number or text from tensors, or from a number that varies: the
# result varies, too.
_VARYING_RESULTS = (NEEDS_CONSTANT, "MD230", "MD234")

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]


def predicted(traced: TracedFrame, cut: Break, following: FramePoint, profile: FrameProfile) -> FrameProfile:
    """Returns the predicted profile of the frame point `following`, after the instruction at the cut; `profile` belongs
    to the present frame."""
    facts = _Facts(traced, profile)
    for name, value in _values_by_parameter(cut, following).items():
        facts.add(value, Local(name))
    if cut.diagnostic.code in _VARYING_RESULTS:
        pushed = _pushed(cut, following)
        facts.profile.numbers |= dict.fromkeys((stable_name(Local(name)) for name in pushed), None)
        if profile.items.patterns:
            facts.profile.items.computed.update(pushed)
    return facts.profile


def predicted_of_callee(
    traced: TracedFrame, cut: Break, code: CodeType, profile: FrameProfile
) -> tuple[CodeType, FrameProfile] | None:
    """Returns the code of the function called through its own dispatcher at the cut, and the predicted profile of the
    arguments; `code` and `profile` belong to the present frame. Returns None for any other call."""
    callee = None if cut.compiled_callee is None else cut.stack[cut.compiled_callee]
    arguments = _call_arguments(cut, code)
    if not isinstance(callee, VariableTracker) or arguments is None:
        return None
    function, args = _unbound(callee, arguments[0])
    if isinstance(function, NestedFunctionVariable):
        callee_code, cells = function.code, function.closure
    elif isinstance(function, FunctionType):
        callee_code, cells = function.__code__, ()
    else:
        return None
    facts = _Facts(traced, profile)
    for value, source in (*_bind(callee_code, args, arguments[1]), *zip(cells, map(Local, callee_code.co_freevars))):
        facts.add(value, source)
        if isinstance(source, Local) and source.name in callee_code.co_cellvars:
            facts.add(value, CellContents(source))
    return callee_code, facts.profile


def written_sizes(effects: SideEffects) -> FrameProfile:
    """Returns a profile with the sizes of the tensors that a frame writes to external containers.

    If the frame has read a tensor of another size there, as in a cache that grows in each call, the size varies.
    """
    profile = FrameProfile()
    for source, value in _written_slots(effects):
        if isinstance(value, TensorVariable):
            sizes, strides = (list(map(size_here, part)) for part in (value.fake.shape, value.fake.stride()))
            profile.tensors[stable_name(source)] = (tuple(sizes), relative_strides(sizes, strides))
    return profile


def _written_slots(effects: SideEffects) -> Iterator[tuple[Source, object]]:
    """Yields the sources that the frame has written, and the new values."""
    for effect in filter(effects.is_last, effects.journal):
        match effect:
            case AttrSet(obj, name, value) if obj.source is not None:
                yield Attr(obj.source, name), value
            case GlobalSet(namespace, name, value):
                yield global_source(namespace, name), value
            case CellSet(cell, value) if cell.source is not None:
                yield CellContents(cell.source), value
            case ContentsChanged(ListVariable() | DictVariable() as container):
                if isinstance(container.items, LazyList | LazyDict):
                    yield from (
                        (source, value) for source, value in container.items.written_slots() if source is not None
                    )


def _unbound(callee: VariableTracker, args: Args) -> tuple[Any, Args]:
    """Returns the function run by a call of `callee`, and the complete arguments."""
    if isinstance(callee, MethodVariable):
        return _unbound(callee.function, (callee.receiver, *args))
    if not isinstance(callee, FunctionVariable | ModuleVariable | OpaqueVariable):
        return callee, args
    called = callee.value
    if isinstance(called, MethodType):
        return called.__func__, (OpaqueVariable(called.__self__, source=callee.source and callee.source.base), *args)
    if isinstance(called, torch.nn.Module):
        call = type(called).__call__
        return module_call(type(called)) if call is torch.nn.Module.__call__ else call, (callee, *args)
    return called, args


def _call_arguments(cut: Break, code: CodeType) -> tuple[Args, Kwargs] | None:
    """Returns the positional and keyword arguments of the call at a cut; None for an unknown `*` or `**` argument."""
    group = [decode(code)[k] for k in group_of(code, cut.index)]
    stack = [*cut.stack[(cut.compiled_callee or 0) + 1 :]]
    if any(isinstance(value, Null) for value in stack[1:]):
        return None
    values = [value for value in stack if not isinstance(value, Null)]
    if group[-1].opname == "CALL_FUNCTION_EX":
        starred, *named = values
        return _items(starred), {key: value for table in named for key, value in _items_by_name(table).items()}
    names = next((i.argval for i in group if i.opname == "KW_NAMES"), ())
    if group[-1].opname == "CALL_KW":
        names = as_constant(values.pop())
    positional = len(values) - len(names)
    return values[:positional], dict(zip(names, values[positional:]))


def _bind(code: CodeType, args: Args, kwargs: Kwargs) -> list[tuple[VariableTracker, Source]]:
    """Returns each argument of a call with its source in the called function."""
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    starred = iter(code.co_varnames[count + code.co_kwonlyargcount :])
    bound: list[tuple[VariableTracker, Source]] = [(v, Local(name)) for name, v in zip(names[:count], args)]
    if code.co_flags & inspect.CO_VARARGS:
        rest = Local(next(starred))
        bound += [(value, Item(rest, position)) for position, value in enumerate(args[count:])]
    others = Local(next(starred)) if code.co_flags & inspect.CO_VARKEYWORDS else None
    for name, value in kwargs.items():
        if name in names:
            bound.append((value, Local(name)))
        elif others is not None:
            bound.append((value, Item(others, str(name))))
    return bound


def _items(starred: VariableTracker) -> Args:
    """Returns the items of a tuple or list."""
    if isinstance(starred, OpaqueVariable) and starred.source is not None and type(starred.value) is tuple:
        return [OpaqueVariable(item, source=Item(starred.source, k)) for k, item in enumerate(starred.value)]
    items = starred.items if isinstance(starred, SequenceVariable) else None
    return items.lazy() if type(items) is Slots else []


def _items_by_name(table: VariableTracker) -> dict[str, VariableTracker]:
    """Returns the items of a dict under text keys."""
    items = table.items if isinstance(table, DictVariable) else None
    found = items.lazy() if isinstance(items, NewEntries) else {}
    return {key.token: value for key, value in found.items() if type(key.token) is str}


def _values_by_parameter(cut: Break, following: FramePoint) -> Mapping[str, VariableTracker]:
    """Returns the values by their parameter names, except the stack values that the instruction pops."""
    kept = min(len(cut.stack), len(following.stack)) - 1
    stack = [None if isinstance(v, Null) else v for v in (*cut.stack[:kept], *[None] * len(following.stack))]
    values = [
        *(cut.cells.get(name) for name in following.cells),
        *(value for kind, value in zip(following.stack, stack) if kind != NULL),
        *(cut.local_variables.get(name) for name in following.locals),
    ]
    return {name: value for name, value in zip(following.parameters, values) if value is not None}


def _pushed(cut: Break, following: FramePoint) -> Sequence[str]:
    """Returns the parameter names of the values that the instruction pushes."""
    kept = max(min(len(cut.stack), len(following.stack)) - 1, 0)
    start, end = (sum(kind != NULL for kind in kinds) for kinds in (following.stack[:kept], following.stack))
    first = len(following.cells)
    return following.parameters[first + start : first + end]


class _Facts:
    """Collects facts about the values that the next frame gets."""

    def __init__(self, traced: TracedFrame, profile: FrameProfile) -> None:
        numbers: dict[str, Fact] = {name: fact for name, fact in profile.numbers.items() if fact is None}
        tensors = {name: parts for name, parts in profile.tensors.items() if None in (*parts[0], *parts[1])}
        self._known = FrameProfile(numbers=numbers, tensors=tensors, items=profile.items)
        # External values keep their names after the break.
        self.profile = FrameProfile(
            numbers={name: fact for name, fact in numbers.items() if "L[" not in name},
            tensors={name: parts for name, parts in tensors.items() if "L[" not in name},
            items=VaryingItems({name for name in profile.items.patterns if "L[" not in name}),
        )
        # The pattern of each group of moved items: by the old pattern, and the new name without positions.
        self._moved: dict[tuple[str, str], str] = {}
        self._shapes = traced.shapes
        self._side_effects = traced.side_effects
        self._seen: set[tuple[VariableTracker, Source]] = set()

    def add(self, value: VariableTracker, source: Source) -> None:
        """Adds the facts about a value at `source`, and about the contents of the value."""
        if (value, source) in self._seen or len(self._seen) >= _MOST_VALUES:
            return
        self._seen.add((value, source))
        if value.source is not None:
            self._carry_over(stable_name(value.source), stable_name(source))
        if isinstance(value, TensorVariable | NumberVariable):
            if self._shapes is not None:
                self._add_fact(value, stable_name(source), self._shapes)
        elif isinstance(value, ItemVariable):
            self.profile.numbers |= {} if value.cls is bool else {stable_name(source): None}
        elif isinstance(value, CellVariable):
            if value.contents is not None:
                self.add(value.contents, CellContents(source))
        elif isinstance(value, SequenceVariable) and type(value.items) is Slots:
            for position, item in enumerate(value.items.lazy()):
                self.add(item, Item(source, position))
        elif isinstance(value, DictVariable) and isinstance(value.items, NewEntries):
            for key, item in value.items.lazy().items():
                if isinstance(key.token, int | str):
                    self.add(item, Item(source, key.token))
        for name, attribute in self._side_effects.written_attributes(value).items():
            if isinstance(attribute, VariableTracker):
                self.add(attribute, Attr(source, name))

    def _carry_over(self, old: str, new: str) -> None:
        """Copies the facts about the source `old` to the new name."""
        for name in self._known.numbers:
            if _is_within(name, old):
                self.profile.numbers[new + name[len(old) :]] = None
        for name, parts in self._known.tensors.items():
            if _is_within(name, old):
                self.profile.tensors[new + name[len(old) :]] = parts
        for pattern in self._known.items.patterns:
            if _is_within(pattern, old):
                self.profile.items.patterns.add(new + pattern[len(old) :])
            elif fits(pattern, old):
                group = pattern, _POSITION.sub("[*]", new)
                before, self._moved[group] = self._moved.get(group, ""), joined(self._moved.get(group, ""), new)
                self.profile.items.patterns.discard(before)
                self.profile.items.patterns.update([self._moved[group]] if before else [])

    def _add_fact(self, value: TensorVariable | NumberVariable, name: str, shapes: Shapes) -> None:
        if isinstance(value, NumberVariable):
            is_constant = isinstance(value.value, torch.SymInt) and shapes.known_constant(value.value) is not None
            if value.specialized is None and not is_constant:
                self.profile.numbers[name] = None
            return
        shape, stride = value.fake.shape, value.fake.stride()
        sizes, strides = _known_constants(shapes, shape), _known_constants(shapes, stride)
        if None in sizes:
            relative = relative_strides(list(map(size_here, shape)), list(map(size_here, stride)))
            strides = [fact if isinstance(fact, str) else known for fact, known in zip(relative, strides)]
            self.profile.tensors[name] = (tuple(sizes), tuple(strides))


def _is_within(name: str, base: str) -> bool:
    """Returns whether a name belongs to a source, or to a part of the value."""
    return name.startswith(base) and name[len(base) : len(base) + 1] in ("", ".", "[")


def _known_constants(shapes: Shapes, numbers: tuple[int | torch.SymInt, ...]) -> list[Fact]:
    """Returns the constants among numbers, and None for varying numbers."""
    return [shapes.known_constant(n) if isinstance(n, torch.SymInt) else n for n in numbers]


# A limit for large frames: later values are not predicted.
_MOST_VALUES = 2000
_POSITION = re.compile(r"\[\d+\]")
