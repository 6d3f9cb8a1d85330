"""Owns the fused updates of optimizers, which torch computes in one call.

All other code of an optimizer is traced; `tracer/polyfills/optimizers.py` has the surrounding code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minidynamo.compat import FUSED_UPDATES
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.numbers import NumberVariable


def _update(function: Callable[..., Any]) -> registry.Handler:
    def handle(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        """Emits the update. A symbolic learning rate is passed in a tensor: as a number it would be specialized."""
        rate = kwargs.get("lr")
        if isinstance(rate, NumberVariable):
            kwargs["lr"] = tx.emit(torch.full, [TupleVariable([]), rate], {"dtype": constant(torch.float64)})
        return tx.emit(function, args, kwargs)

    return handle


for _function in FUSED_UPDATES:
    registry.function(_function)(_update(_function))
