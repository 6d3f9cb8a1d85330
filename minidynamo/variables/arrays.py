"""Owns the tracker of numpy arrays that the program computes from constants during capture.

Functions of numpy are in `tracer/handlers/numpy_arrays.py`. Arrays that are external values are opaque.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.tensors import TensorVariable


@dataclass(eq=False)
class ArrayVariable(VariableTracker):
    """A numpy array that was computed during capture."""

    #: The array. No other object refers to it.
    value: np.ndarray[Any, Any]
    #: The tensor over the same memory, if the program made it.
    shared: TensorVariable | None = None

    @property
    def python_type(self) -> type:
        return np.ndarray
