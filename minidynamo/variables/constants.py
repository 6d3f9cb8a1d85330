"""Owns the tracker of values that are fully known while tracing.

It does not decide which values are constants; `tracer/wrap.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class ConstantVariable(VariableTracker):
    """An immutable value known now: numbers, text, None, dtypes, devices, enum members, ranges, slices of constants."""

    value: Any

    @property
    def python_type(self) -> type:
        return type(self.value)
