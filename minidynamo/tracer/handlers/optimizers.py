"""Owns the whole updates of optimizers that torch computes in one call.

What else an optimizer does is traced; `tracer/polyfills/optimizers.py` has what stands around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minidynamo.compat import FUSED_UPDATES
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.numbers import NumberVariable


def _update(function: Callable[..., Any]) -> registry.Handler:
    def handle(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        """A learning rate that varies is handed over in a tensor: as a number it would have to stay what it is."""
        rate = kwargs.get("lr")
        if isinstance(rate, NumberVariable):
            kwargs["lr"] = tx.emit(torch.full, [TupleVariable([]), rate], {"dtype": constant(torch.float64)})
        return tx.emit(function, args, kwargs)

    return handle


for _function in FUSED_UPDATES:
    registry.function(_function)(_update(_function))
