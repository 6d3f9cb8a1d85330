"""Owns the tracker of numpy's arrays that the program made of constants while it was traced.

What numpy does with them is in `tracer/handlers/numpy_arrays.py`. Arrays from outside are not looked into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.tensors import TensorVariable


@dataclass(eq=False)
class ArrayVariable(VariableTracker):
    """An array whose contents are `value`, which nobody else holds; `shared` is the tensor over the same memory."""

    value: np.ndarray[Any, Any]
    shared: TensorVariable | None = None

    @property
    def python_type(self) -> type:
        return np.ndarray
