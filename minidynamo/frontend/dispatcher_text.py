"""Owns the text of the functions that are generated for a frame: the dispatcher, its timed form, the frozen function.

It keeps no state: `dispatcher.py` chooses the entries and executes the text. The text for `def f(x, *args, k=1)` with
one entry:

    def f(x, *args, k=None):
        try:
            changed = function7.__code__ is not code or function7.__kwdefaults__ is not keyword_defaults
        except NameError:  # this code has been given to another function
            raise __import__("minidynamo.frontend.frames", fromlist=["refuse_copy"]).refuse_copy('f') from None
        if changed:
            return follow_change([x, args, k])
        if k is left_out_7_k:
            if 'k' not in keyword_defaults:
                return follow_change([x, args, k])
            k = keyword_defaults['k']
        try:
            if None not in ticks:
                time_guards([x, args, k])
            try:
                fits = True if x is None else False
            except Exception:
                fits = False
            if fits:
                boxed = [x, args, k]
                del x, args, k
                return body0(boxed)
            boxed = [x, args, k]
            del x, args, k
            return miss(boxed, 1)(boxed)
        except hide():  # matches nothing: removes minidynamo's frames from the traceback
            raise

A body that ends at a graph break returns the first step after the break: `step, boxed = body0(boxed)`. A loop then
calls the steps. Guards that have read the inputs of the graph pass the inputs to the body in a second list
(`body0(boxed, fits)`). Short bodies are statements instead of a call (`inlining.py`).
"""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from minidynamo.core import artifacts
from minidynamo.frontend.frames import Frame, RootFrame, hiding_frames
from minidynamo.frontend.inlining import Inlined
from minidynamo.frontend.locked_bodies import body_of
from minidynamo.guards.cache import Entry
from minidynamo.guards.check import write_condition
from minidynamo.guards.frozen import Recheck, distinguishing


def native_source(frame: Frame) -> str:
    """Returns the text of the function that runs the frame eagerly."""
    return _function(frame, frame.tail_call(f"{frame.names.native}({frame.names.boxed})"))


def dispatch_source(
    frame: Frame, bodies: Mapping[Entry, str], generation: int, statements: Mapping[Entry, Inlined] | None = None
) -> str:
    """Returns the text of the function that tries entries in order.

    `bodies` has the names of their bodies. For an entry in `statements`, the name is that of a tuple with the objects
    that its statements use.
    """
    names = frame.names
    lines = [f"if None not in {names.ticks}:"]  # takes an item: see `Counter`
    lines.append(f"    {names.time_guards}([{', '.join(frame.parameters)}])")
    for entry, body in bodies.items():
        if statements and entry in statements:
            lines += _inlined(frame, entry, body, statements[entry])
            continue
        arguments = f"{names.boxed}, {names.fits}" if entry.condition.returns_inputs else names.boxed
        lines += [*_check_entry(frame, entry), *_if_it_fits(frame, _tail_call(frame, entry, f"{body}({arguments})"))]
    return _function(frame, [*lines, *frame.tail_call(f"{names.miss}({names.boxed}, {generation})({names.boxed})")])


def timed_function(frame: Frame, entries: Sequence[Entry]) -> Callable[..., int]:
    """Returns a function of the frame's values that measures the nanoseconds until the matching entry is found."""
    names = frame.names
    lines = [f"def timed({', '.join(frame.parameters)}):", f"    {names.count} = {names.time_guards}()"]
    for entry in entries:
        lines += [f"    {line}" for line in _check_entry(frame, entry)]
        lines.append(f"    if {names.fits}: return {names.time_guards}() - {names.count}")
    lines.append(f"    return {names.time_guards}() - {names.count}")
    namespace: dict[str, Any] = {names.time_guards: time.perf_counter_ns}  # no reference back to a dispatcher
    for entry in entries:
        namespace |= entry.condition.namespace
    exec("\n".join(lines), namespace)
    return cast(Callable[..., int], namespace.pop("timed"))


def frozen_function(
    frame: Frame, entries: Sequence[Entry], check_every: int, backend_key: Callable[[], Hashable]
) -> types.FunctionType:
    """Returns a function that checks only the guards that distinguish `entries`, and every `check_every` calls (0:
    never) all guards.
    """
    names = frame.names
    namespace = {"__name__": frame.module, names.count: itertools.count().__next__}
    namespace[names.miss] = Recheck(frame.name, frame.parameters, entries, backend_key)
    listed = f"({''.join(f'{name}, ' for name in frame.parameters)})"
    lines = []
    if check_every:
        lines += [f"if not {names.count}() % {check_every}:", f"    {names.miss}({listed})"]
    for number, (entry, guards) in enumerate(zip(entries, distinguishing(entries))):
        body = f"{names.body}{number}"
        namespace[body] = body_of(entry, frame)
        tail_call = _tail_call(frame, entry, f"{body}({names.boxed})")
        if len(entries) > 1:
            condition = write_condition(guards, frame.parameters, name=frame.name, number=number)
            namespace |= condition.namespace
            tail_call = [*_check(frame, f"True if {condition.text} else False"), *_if_it_fits(frame, tail_call)]
        lines += tail_call
    lines += [f"return {names.miss}({listed}, True)"] * (len(entries) > 1)
    namespace[names.hide] = artifacts.own_frames_hidden
    text = _function(frame, lines, checks=())
    function = artifacts.load("frozen", frame.name, text, namespace, frame.function_name)
    del namespace[frame.function_name]
    frame.finish(function)
    return function


def _tail_call(frame: Frame, entry: Entry, call: str) -> list[str]:
    """Returns the lines that call the body of an entry and return the frame's result.

    Steps after a break run in this frame, with no further generated frame below them: recursive functions get deep.
    """
    lines = frame.tail_call(call)
    if not entry.steps:
        return lines
    step, boxed = frame.names.step, frame.names.boxed
    driven = [f"{step}, {boxed} = {call}", f"while {step} is not None:", f"    {step}, {boxed} = {step}({boxed})"]
    return [*lines[:-1], *driven, f"return {boxed}"]


def _function(frame: Frame, lines: Sequence[str], checks: Sequence[str] | None = None) -> str:
    """Returns the text of a function that runs `lines` after `checks` (None: the checks of the frame)."""
    if isinstance(frame, RootFrame):
        lines = hiding_frames(lines, frame.names.hide)
    lines = [*frame.prologue, *(frame.validity_check if checks is None else checks), *lines]
    return "\n".join([f"def {frame.function_name}({frame.signature}):", *(f"    {line}" for line in lines), ""])


def _check_entry(frame: Frame, entry: Entry, then: Sequence[str] = ()) -> list[str]:
    condition = entry.condition
    return _check(frame, condition.text if condition.returns_inputs else f"True if {condition.text} else False", then)


def _inlined(frame: Frame, entry: Entry, body: str, statements: Inlined) -> list[str]:
    """Returns the lines that check an entry, and run its statements. The names of a dropped entry cannot be bound."""
    bound = [f"{', '.join(statements.names)}, = {body}"] if statements.names else []
    return [*_check_entry(frame, entry, bound), *_if_it_fits(frame, statements.lines)]


def _check(frame: Frame, condition: str, then: Sequence[str] = ()) -> list[str]:
    """Returns the lines that check a condition and, if it holds, run the lines `then`."""
    fits = frame.names.fits
    lines = [f"{fits} = {condition}", *(_if_it_fits(frame, then) if then else ())]
    return ["try:", *(f"    {line}" for line in lines), "except Exception:", f"    {fits} = False"]


def _if_it_fits(frame: Frame, lines: Iterable[str]) -> list[str]:
    return [f"if {frame.names.fits}:", *(f"    {line}" for line in lines)]
