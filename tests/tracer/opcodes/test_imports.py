# Programs are written as users write them, not as a linter would.
# ruff: noqa: I001, PLC0415

import sys

import pytest

from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs()
def modules_that_are_loaded(x):
    import math
    import os.path
    from torch.nn import functional as F

    return F.relu(x) * math.pi, os.path.sep


@programs(graphs=None, breaks=None)
def module_that_is_not_loaded(x):
    sys.modules.pop("this_is_no_module", None)
    try:
        import this_is_no_module  # noqa: F401
    except ImportError:
        return x + 1
    return x
