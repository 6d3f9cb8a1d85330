"""Owns how torch's context managers are rebuilt: in their state between `__enter__` and `__exit__` if they are open.

The user's context managers are ordinary objects and not here. Settings changed by torch's managers are changed after
the graph (`tracer/capture/frame_end.py`)."""

from __future__ import annotations

import torch

from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable

_GRAD_MODES = (torch.no_grad, torch.enable_grad, torch.autograd.set_grad_enabled)


@builds(ContextVariable, hint="context")
def _context(rebuild: Rebuilder, variable: ContextVariable) -> str:
    arguments = ", ".join(rebuild.literal(argument) for argument in variable.args)
    factory = rebuild.constant(variable.factory)
    if variable.saved is None or variable.factory not in _GRAD_MODES:
        return f"{factory}({arguments})"
    # set_grad_enabled() would switch the mode at once, and record the present mode.
    name = rebuild.assign("context", f"{factory}.__new__({factory})")
    rebuild.lines.append(f"{name}.prev = {variable.saved}")
    if variable.args:
        rebuild.lines.append(f"{name}.mode = {variable.args[0]}")
    return name


@builds(ContextExitVariable)
def _context_exit(rebuild: Rebuilder, variable: ContextExitVariable) -> str:
    return f"{rebuild.value(variable.context)}.__exit__"
