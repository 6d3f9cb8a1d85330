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
