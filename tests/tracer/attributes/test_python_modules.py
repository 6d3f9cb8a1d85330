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


class Parts:
    factor = 3.0

    @staticmethod
    def doubled(x):
        return x * 2


def making_module():
    """A module that makes attributes when they are asked for (PEP 562)."""
    module = types.ModuleType("making")
    module.parts = Parts

    def made(name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(module.parts, name)

    module.__getattr__ = made
    return module


MAKING = making_module()


@programs(lambda: (vector(), MAKING))
def attributes_that_a_module_makes(x, module):
    found = hasattr(module, "_hidden"), hasattr(module, "nope"), getattr(module, "nope", 5)
    return module.doubled(x) + module.factor, found, module.__name__


def test_what_a_module_makes_is_guarded_by_what_was_read_for_it():
    module = making_module()

    def program(x):
        return module.doubled(x) + module.factor

    f = minidynamo.compile(program, backend="eager", fullgraph=True)

    def check():
        assert torch.equal(f(torch.ones(2)), program(torch.ones(2)))

    check()
    module.parts = type("Others", (Parts,), {"factor": 4.0})
    check()
    module.factor = 6.0
    check()
    del module.factor
    check()
    module.__getattr__ = lambda name: Parts.doubled if name == "doubled" else 7.0
    check()
    assert f.stats.graph_breaks == 0
    del module.__getattr__
    with pytest.raises(AttributeError, match="doubled"):
        f(torch.ones(2))


def test_the_class_of_a_module_comes_before_its_globals():
    class Described(types.ModuleType):
        shift = property(lambda self: 5)

    class Asked(types.ModuleType):
        def __getattribute__(self, name):
            return 7

    for module in (Described("described"), Asked("asked")):
        vars(types.ModuleType)["__dict__"].__get__(module)["shift"] = 1
        compiled = minidynamo.compile(lambda x, module=module: x + module.shift, backend="eager")
        assert compiled(torch.zeros(1)).item() == module.shift
