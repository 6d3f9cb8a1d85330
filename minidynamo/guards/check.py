"""Owns the condition of an entry: the text that checks whether all guards hold.

Does not choose guards (the tracer does), write a single guard (`guard.py`), or handle a call that no entry fits
(`frontend/dispatcher.py`). Evaluating the text runs no user code. An exception during evaluation (a missing key, a
value of another type) counts as false.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core import artifacts
from minidynamo.core.names import Namespace, with_globals
from minidynamo.core.records import record
from minidynamo.guards.guard import Guard, GuardKind, reader_of
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Attr, InstanceAttr, Local, Source, is_argument_or_item
from minidynamo.guards.state import GlobalState, KernelSettings, current
from minidynamo.guards.tensors import batched_checker
from minidynamo.guards.walk import MIN_GUARDS, Walk, WalkSlot, plan_walk


@record(frozen=True)
class Condition:
    """A condition over the arguments of a frame."""

    #: an expression over the frame's argument names and the names in `namespace`; binds no local
    text: str
    #: the objects that `text` names
    namespace: dict[str, Any]
    #: weak references to objects compared by identity: if any is dead, the condition never holds again
    watched: tuple[weakref.ref[Any], ...]
    #: interpreter-wide settings that are checked in addition to the guards
    settings: KernelSettings
    #: the text of the functions that `text` calls; empty if `text` contains the guards itself
    function_source: str = ""
    #: whether a condition that holds evaluates to the list of the graph's inputs
    returns_inputs: bool = False
    #: the walk, which can become machine code
    walk: WalkSlot | None = None

    def rebound(self, others: Mapping[int, object]) -> Condition:
        """Returns the condition for another dispatcher: `others` maps the id of an object that the text names to the
        object to name instead.

        Conditions share no walk, because machine code remembers the dictionaries that it has seen.
        """
        if self.walk is None and not others:
            return self
        if not self.function_source:
            return replace(self, namespace={name: others.get(id(v), v) for name, v in self.namespace.items()})
        walk = None if self.walk is None else self.walk.walk.rebound(others)
        if self.walk is not None and walk is not None:
            others = {**others, id(self.walk.namespace[self.walk.name]): walk.function}
        ((name, check),) = self.namespace.items()
        rebound_check = with_globals(check, others)
        slot = None if self.walk is None or walk is None else WalkSlot(walk, rebound_check.__globals__, self.walk.name)
        return replace(self, namespace={name: rebound_check}, walk=slot)


def write_condition(
    guards: Sequence[Guard],
    parameters: Sequence[str],
    *,
    name: str = "frame",
    number: int = 0,
    inputs: Sequence[Source] = (),
) -> Condition:
    """Builds the condition under which all `guards` hold for a frame whose arguments are called `parameters`.

    Call this function in the interpreter-wide state that a GLOBAL_STATE guard expects; in any other state the checks
    are slower. `number` (of the entry in its dispatcher) makes the names in the namespace unique among the entries.
    Guards that share intermediate reads become a function, whose locals are gone before the graph runs. Many guards on
    the contents of objects become a walk; the function then also returns the values at `inputs`, if any.
    """
    guards = ordered(guards)
    settings = KernelSettings()
    walk = plan_walk(guards, inputs, parameters, name) if len(guards) >= MIN_GUARDS else None
    guards = guards if walk else _with_one_tensor_check(guards)
    found = None if walk is None else walk.found
    reserved = [*parameters, *([] if found is None else [found.name])]

    def written(suffix: str) -> tuple[Namespace, list[str], list[str]]:
        reader = reader_of(guards, Namespace(reserved, suffix), found)
        texts = reader.finished(_conjuncts_of_all(guards, inputs, walk, reader, settings))
        return reader.names, texts, reader.temporaries()

    names, texts, temporaries = written("")
    if not (temporaries or walk):  # the condition is short, and shares its globals with other entries
        names, texts, _ = written(f"_{number}")
    watched = (*names.watched(), *(walk.watched if walk else ()))
    if not (temporaries or walk):
        return Condition(" and ".join(texts) or "True", names.values, watched, settings)
    function = Namespace(parameters, suffix=f"_{number}").fresh("guards")
    read = {root for guard in guards for source in guard.sources() for root in source.roots()}
    used = [parameter for parameter in parameters if Local(parameter) in read]
    source = _function(function, used, texts)
    check = artifacts.load("guards", name, source, names.values, function)
    del names.values[function]  # a function held by its own globals would be a reference cycle
    source = f"{walk.source}\n\n{source}" if walk else source
    text = f"{function}({', '.join(used)})"
    slot = None if walk is None else WalkSlot(walk, names.values, names.constant(walk.function, "walk"))
    return Condition(text, {function: check}, watched, settings, source, bool(walk and inputs), slot)


def _conjuncts_of_all(
    guards: Sequence[Guard],
    inputs: Sequence[Source],
    walk: Walk | None,
    reader: Reader,
    settings: KernelSettings,
) -> list[str]:
    """Lists the conditions of all guards; with a walk, followed by the list of inputs, if any."""
    if walk is None:
        return conjuncts(guards, reader, settings)
    call = f"{reader.constant(walk.function, 'walk')}({', '.join(walk.arguments)})"
    texts = conjuncts(walk.rest, reader, settings, f"({walk.found.name} := {call}) is not None")
    return [*texts, f"[{reader.listed(inputs)}]"] if inputs else texts


_TENSORS = 2  # the stage of the tensors among the arguments
# To read this number of tensors costs less than a second call of the batched checker. A call that an entry does not fit
# reads them in vain.
_MOST_JOINED = 2
_HELD = 4  # from this stage on, guards read the contents of objects
# The last of the kinds whose order counts among the guards of one value; the order is that of `GuardKind`.
_KINDS = [*GuardKind]
_LAST_IN_ORDER = _KINDS.index(GuardKind.LENGTH)


def ordered(guards: Sequence[Guard]) -> list[Guard]:
    """Sorts the guards in the order of their checks: a value before the values read from it.

    Drops duplicates, and type guards of values with a tensor guard, which covers the type.
    """
    unique: dict[tuple[Source, GuardKind, object], Guard] = {}
    for guard in guards:
        literal = type(guard.expected) in (str, int, float)
        token = None if guard.kind is GuardKind.TENSOR else guard.expected if literal else id(guard.expected)
        unique.setdefault((guard.source, guard.kind, token), guard)
    tensors = {guard.source for guard in unique.values() if guard.kind is GuardKind.TENSOR}
    needed = [g for g in unique.values() if not (g.kind is GuardKind.TYPE and g.source in tensors)]
    return sorted(needed, key=lambda guard: _rank(guard, tensors))


def _rank(guard: Guard, tensors: set[Source]) -> tuple[int, int, int]:
    """Returns the stage, the distance from the root, and the rank among the guards of one value.

    Frequent failures and cheap checks come first; relations between values come last.
    """
    row = guard.kind.value
    depth = guard.source.depth() + row.reads_dictionary
    if row.stage is not None:
        stage = row.stage
    elif depth > 1 and not tensors.isdisjoint(guard.source.bases()):
        stage = 6
    elif guard.kind is GuardKind.TENSOR:
        stage = _TENSORS if is_argument_or_item(guard.source) else 5
    else:
        stage = 1 if depth == 0 else 4
    return stage, depth, min(_KINDS.index(guard.kind), _LAST_IN_ORDER + 1)


def _joined(guards: Sequence[Guard]) -> set[Source]:
    """Returns the tensors that objects hold, if they are few and some argument is a tensor: one call checks all."""
    tensors = {guard.source for guard in guards if guard.kind is GuardKind.TENSOR}
    held = {source for source in tensors if not is_argument_or_item(source) and tensors.isdisjoint(source.bases())}
    return held if len(held) < len(tensors) and len(held) <= _MOST_JOINED else set()


def _with_one_tensor_check(guards: Sequence[Guard]) -> list[Guard]:
    """Moves the `_joined` tensors to the tensors among the arguments, after the classes of the objects that hold
    them.
    """
    joined = _joined(guards)
    above = {each for source in joined for each in (source, *source.bases())}
    above |= {Attr(source.of, "__dict__") for source in above if isinstance(source, InstanceAttr)}
    tensors = {guard.source for guard in guards if guard.kind is GuardKind.TENSOR}

    def group(guard: Guard) -> int:
        stage = _rank(guard, tensors)[0]
        if guard.kind is GuardKind.TENSOR and (stage == _TENSORS or guard.source in joined):
            return 1
        is_class = guard.source in above and guard.kind.value.cls is not None
        return 0 if stage < _TENSORS or is_class else 2

    return sorted(guards, key=group)


def conjuncts(
    guards: Sequence[Guard],
    reader: Reader,
    settings: KernelSettings | None = None,
    walk: str = "",
) -> list[str]:
    """Lists the conditions of the guards, in their order, without duplicates. Adjacent tensors share one check.

    `walk` is a condition that precedes all conditions on the contents of objects.
    """
    here = all(guard.expected == current() for guard in guards if guard.kind is GuardKind.GLOBAL_STATE)
    tensors = {guard.source for guard in guards if guard.kind is GuardKind.TENSOR}
    texts: list[str] = []
    batches: list[set[Source]] = []
    pending_walk = [walk] * bool(walk)
    joined = set() if walk else _joined(guards)

    def group(guard: Guard) -> tuple[bool, bool]:
        return guard.source not in joined and _rank(guard, tensors)[0] >= _HELD, guard.kind is GuardKind.TENSOR

    for (held, are_tensors), run in itertools.groupby(guards, group):
        if held:
            texts += pending_walk
            pending_walk = []
        if are_tensors:
            batch = [*run]
            checks = _tensor_conjuncts(batch, reader, here)
            batches += [{guard.source for guard in batch}] * (len(checks) == 1)
            texts += checks
            continue
        for guard in run:
            if guard.kind is GuardKind.GLOBAL_STATE and settings is not None and here:
                texts += _state_conjuncts(guard.expected, reader, settings, bool(batches))
            elif guard.kind is GuardKind.DISTINCT_OBJECTS:
                for sources in _possibly_same(guard, guards, batches):
                    texts += replace(guard, source=sources[0], expected=sources[1:]).conditions(reader)
            else:
                texts += guard.conditions(reader)
    return list(dict.fromkeys([*texts, *pending_walk]))


def _possibly_same(guard: Guard, guards: Sequence[Guard], batches: Sequence[set[Source]]) -> list[tuple[Source, ...]]:
    """Splits sources of distinct objects into groups, where no other guard implies the distinction within a group.

    Tensors with different facts are distinct, and the batched checker refuses the same tensor twice.
    """
    facts = {g.source: g.expected for g in guards if g.kind is GuardKind.TENSOR}
    groups: dict[object, list[Source]] = {}
    for source in (guard.source, *guard.expected):
        known = facts.get(source)
        if known is None:
            return [(guard.source, *guard.expected)]
        alike = (known.cls, known.dtype, known.device, known.requires_grad, len(known.shape))
        groups.setdefault(alike, []).append(source)
    return [tuple(group) for group in groups.values() if not any(batch.issuperset(group) for batch in batches)]


def _tensor_conjuncts(guards: Sequence[Guard], reader: Reader, batched: bool) -> list[str]:
    """Checks several tensors in one call where torch can, else attribute by attribute."""
    guards = sorted(guards, key=lambda guard: reader.found_index(guard.source))
    facts = tuple(guard.expected for guard in guards)
    check = batched_checker(facts) if batched else None
    if check is not None:
        name = reader.constant(check, "check_tensors")
        return [f"{name}({reader.listed([guard.source for guard in guards])})"]
    return [text for guard in guards for text in guard.conditions(reader)]


def _state_conjuncts(expected: GlobalState, reader: Reader, settings: KernelSettings, has_batch: bool) -> list[str]:
    """Checks the interpreter-wide settings; a batched tensor check covers inference, dispatch modes and transforms."""
    texts = [f"{reader.constant(settings.unchanged, 'check_state')}()"]
    count = f"{reader.constant(compat.torch_function_mode_count, 'count_function_modes')}()"
    texts.append(f"{count} == {len(expected.mode_devices)}" if expected.mode_devices else f"not {count}")
    texts.append(f"{reader.constant(compat.forward_ad, 'forward_ad')}['_current_level'] < 0")
    texts.append(f"not {reader.constant(torch.is_anomaly_enabled, 'detects_anomalies')}()")
    if not has_batch:
        is_inference = reader.constant(torch.is_inference_mode_enabled, "is_inference_mode")
        texts.append(f"{is_inference}() is {expected.inference_mode}")
        texts.append(f"not {reader.constant(compat.torch_dispatch_mode_count, 'count_dispatch_modes')}()")
        texts.append(f"{reader.constant(compat.running_transform, 'running_transform')}() is None")
    # The default device is set by a function mode, or else by the deprecated default tensor type.
    if expected.mode_devices:
        devices = reader.constant(expected.mode_devices, "devices")
        texts.append(f"{reader.constant(compat.open_devices, 'open_devices')}() == {devices}")
    elif compat.HAS_ACCELERATOR_TENSOR_TYPES:
        legacy = reader.constant(compat.legacy_default_device, "default_device")
        texts.append(f"{legacy}() == {str(expected.default_device)!r}")
    return texts


def _function(name: str, parameters: Sequence[str], texts: Sequence[str]) -> str:
    """Writes a function that returns whether the conditions hold."""
    lines = [f"def {name}({', '.join(parameters)}):", "    return ("]
    lines += [f"        {'and ' if position else ''}{text}" for position, text in enumerate(texts)]
    return "\n".join([*lines, "    )", ""])


def describe(guards: Sequence[Guard]) -> str:
    """Lists the guards, one per line: subject, expectation, and the user's line that needs the guard."""
    lines: dict[str, None] = {}
    for guard in ordered(guards):
        text = f"{guard.subject()}: {guard.expectation()}"
        lines[f"{text:<70}  # {guard.where}" if guard.where else text] = None
    return "\n".join(lines)
