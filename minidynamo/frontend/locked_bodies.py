"""Owns the bodies of entries whose frame takes a lock: the lock is held around the residual program.

The dispatcher checks the guards before the lock is taken, and another thread may change a value in between. So the body
checks the guards again; if they do not hold, the frame runs eagerly, and Python takes the lock.
`tracer/handlers/locks.py` decides which locks frames take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidynamo.core import artifacts
from minidynamo.core.names import Namespace
from minidynamo.frontend.frames import Frame, RootFrame
from minidynamo.guards.cache import Entry


def body_of(entry: Entry, frame: Frame) -> Callable[..., Any]:
    """Returns the function to call if the guards of an entry of `frame` hold."""
    if entry.lock is None:
        return entry.body
    own, condition = frame.names, entry.condition
    names = Namespace([*frame.parameters, own.boxed, own.fits, own.body, own.native, *condition.namespace])
    lock = entry.lock.expression(names)
    names.values |= condition.namespace | {own.body: entry.body, own.native: frame.native}
    function = names.fresh(frame.function_name)
    run_eagerly = f"lambda {own.boxed}: (None, {own.native}({own.boxed}))"
    lines = [
        *([f"{', '.join(frame.parameters)}, = {own.boxed}"] if frame.parameters else []),
        f"with {lock}:",
        "    try:",
        f"        {own.fits} = True if {condition.text} else False",
        "    except Exception:",
        f"        {own.fits} = False",
        *([f"    del {', '.join(frame.parameters)}"] if frame.parameters else []),
        f"    if {own.fits}:",
        f"        return {own.body}({own.boxed})",
        f"return {run_eagerly if isinstance(frame, RootFrame) else own.native}, {own.boxed}",
    ]
    source = "\n".join([f"def {function}({own.boxed}):", *(f"    {line}" for line in lines), ""])
    loaded = artifacts.load("locked", frame.name, source, names.values, function)
    del names.values[function]  # a function in its own globals is a reference cycle
    return loaded
