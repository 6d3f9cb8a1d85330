"""Owns every use of a private torch name and every question about the running Python version.

It contains no logic of its own: each name here is a re-export or a small adapter, so that a new torch or Python
release is met in this file alone.
"""

from __future__ import annotations

import sys

import torch

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)

# Operators and grad mode, as FX graphs hold them.
OpOverload = torch._ops.OpOverload
set_grad_enabled = torch._C._set_grad_enabled

# Path of torch's Python extension; what it was linked against (libtorch, OpenMP) can be looked up through it.
NATIVE_LIBRARY: str = torch._C.__file__
