"""Attributes of modules are their globals."""

# Programs are written as users write them, not as a linter would.

import types

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def settings():
    module = types.ModuleType("settings")
    module.scale = 2
    return module


SETTINGS = settings()


@programs(lambda: (vector(), SETTINGS))
def reading_and_writing(x, module):
    module.seen = x
    return module.scale * module.seen, hasattr(module, "nope")


def test_what_is_read_is_guarded():
    module = settings()
    f = minidynamo.compile(lambda x: x * module.scale + hasattr(module, "shift"), backend="eager")
    assert f(torch.ones(1)).item() == 2
    module.scale = 3
    assert f(torch.ones(1)).item() == 3
    module.shift = True
    assert f(torch.ones(1)).item() == 4


def test_settings_that_a_module_of_torch_asks_for_are_guarded():
    def precision(x):
        return x + 1, torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32

    f = minidynamo.compile(precision, backend="eager", fullgraph=True)
    assert f(torch.ones(1))[1:] == precision(torch.ones(1))[1:]
    with torch.backends.cudnn.flags(benchmark=not torch.backends.cudnn.benchmark):
        assert f(torch.ones(1))[1:] == precision(torch.ones(1))[1:]
    assert f(torch.ones(1))[1:] == precision(torch.ones(1))[1:]
