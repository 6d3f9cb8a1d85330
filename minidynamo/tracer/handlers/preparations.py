"""Owns preparations that a library makes once per object, in the first call that needs them.

The preparation is made while that call is traced, and the frame is then traced anew: the graph would end at the locks
and the changed modules of the preparation, and the next call would compile all pieces again.
"""

from __future__ import annotations

import importlib

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, none
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import ModuleVariable


class ObjectPrepared(Exception):
    """Raised when an object was prepared: the frame is traced anew."""


_CAPTURING, _INSTALLED = "transformers.utils.output_capturing", "_output_capturing_hooks_installed"


@registry.late_function(_CAPTURING, "maybe_install_capturing_hooks")
def _install_capturing_hooks(tx: Tracer, model: VariableTracker) -> VariableTracker:
    """Installs the hooks by which a model of transformers collects hidden states, attentions and router logits."""
    if tx.truth(tx.call(getattr, [model, constant(_INSTALLED), constant(False)])):
        return none()
    module = model.value if isinstance(model, ModuleVariable) else None
    if module is None or getattr(module, _INSTALLED, False):
        tx.break_graph(
            "MD207",
            "maybe_install_capturing_hooks() cannot be captured",
            why="The function itself makes or changes the model, which gets hooks here.",
            fix="Make the model outside of the compiled function.",
        )
    importlib.import_module(_CAPTURING).maybe_install_capturing_hooks(module)
    raise ObjectPrepared
