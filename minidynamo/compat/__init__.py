"""Owns every use of a private torch name and every question about the running Python version.

It contains no logic of its own: each name here is a re-export or a small adapter, so that a new torch or Python
release is met in this room alone. The names stand by subject, a file each, constants before functions.
"""

# ruff: noqa: F403

from minidynamo.compat.autograd import *
from minidynamo.compat.fake_tensors import *
from minidynamo.compat.graph_modules import *
from minidynamo.compat.modules import *
from minidynamo.compat.operators import *
from minidynamo.compat.python import *
from minidynamo.compat.settings import *
from minidynamo.compat.symbols import *
from minidynamo.compat.tensors import *
from minidynamo.compat.torch_compile import *
from minidynamo.compat.transforms import *
