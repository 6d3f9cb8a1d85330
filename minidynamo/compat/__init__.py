"""Isolates private names of torch, and differences between versions of Python.

Owns every use of a private torch name and every question about the running Python version. Does not own logic: each
name is a re-export or a small adapter, so a new release of torch or Python changes only this folder. Names are sorted
by subject, one file each. Enter at `python.docstring`, `operators.formulas_of`, `tensors.memory_of`.
"""

# ruff: noqa: F403

from minidynamo.compat.autograd import *
from minidynamo.compat.captured_backward import *
from minidynamo.compat.distributed import *
from minidynamo.compat.modules import *
from minidynamo.compat.operators import *
from minidynamo.compat.python import *
from minidynamo.compat.settings import *
from minidynamo.compat.symbols import *
from minidynamo.compat.tensors import *
from minidynamo.compat.torch_compile import *

try:
    from minidynamo.compat.standalone import *
except (AttributeError, ImportError, KeyError, TypeError, ValueError):
    from minidynamo.compat.torch_forms import *  # type: ignore[assignment]
