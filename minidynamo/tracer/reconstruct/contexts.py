"""Owns how context managers of torch are rebuilt, and those that are open at a break entered.

Context managers of the user are objects like any others.
"""

from __future__ import annotations

import torch

from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable


@builds(ContextVariable, hint="context")
def _context(rebuild: Rebuilder, variable: ContextVariable) -> str:
    arguments = ", ".join(rebuild.literal(argument) for argument in variable.args)
    factory = rebuild.constant(variable.factory)
    if variable.factory is not torch.autograd.set_grad_enabled:
        return f"{factory}({arguments})"
    # Its __init__ would switch the mode at once, and note the one in force here.
    name = rebuild.assign("context", f"{factory}.__new__({factory})")
    rebuild.lines.append(f"{name}.mode, {name}.prev = {variable.args[0]}, {variable.saved}")
    return name


@builds(ContextExitVariable)
def _context_exit(rebuild: Rebuilder, variable: ContextExitVariable) -> str:
    """The `__exit__` of a context manager, which is entered for real when all effects have been replayed."""
    text = rebuild.value(variable.context)
    name = text if text.isidentifier() else rebuild.assign("context", text)
    rebuild.entering.append(f"{name}.__enter__()")
    return f"{name}.__exit__"
