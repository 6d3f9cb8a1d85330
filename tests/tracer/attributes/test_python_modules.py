"""Attributes of modules are their globals."""

import types

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def settings():
    module = types.ModuleType("settings")
    module.scale = 2
    return module


SETTINGS = settings()


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
    """Returns a module that creates attributes on access (PEP 562)."""
    module = types.ModuleType("making")
    module.parts = Parts

    def made(name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(module.parts, name)

    module.__getattr__ = made
    return module


MAKING = making_module()


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


class Lazy(types.ModuleType):
    """A module whose class has its own attributes, and creates further attributes on access."""

    base = 2.0
    shift = property(lambda self: self.number + 1)

    def scaled(self, x):
        return x * self.base * self.number

    @classmethod
    def make(cls, name):
        made = cls(name)
        made.number = 3.0
        return made

    def __getattr__(self, name):
        if name == "late":
            return self.number
        raise AttributeError(f"no {name}")


LAZY = Lazy.make("lazy")


@programs(lambda: (vector(), SETTINGS))
class Cases:
    def reading_and_writing(x, module):
        module.seen = x
        return module.scale * module.seen, hasattr(module, "nope")

    @programs(lambda: (vector(), MAKING))
    def attributes_that_a_module_makes(x, module):
        found = hasattr(module, "_hidden"), hasattr(module, "nope"), getattr(module, "nope", 5)
        return module.doubled(x) + module.factor, found, module.__name__

    @programs(lambda: (vector(), LAZY))
    def attributes_of_a_class_of_modules(x, module):
        found = hasattr(module, "nope"), getattr(module, "nope", 5), module.late, module.base, module.__name__
        classes = type(module) is Lazy, isinstance(module, types.ModuleType), module.__class__.__name__
        return module.scaled(x) + module.shift, found, classes


def test_what_a_class_of_modules_answers_is_guarded():
    class First(types.ModuleType):
        base = 2.0
        shift = property(lambda self: 5.0)

    class Second(types.ModuleType):
        number = property(lambda self: 11.0)

    module = First("module")
    module.number = 1.0

    def program(x):
        return x * module.base + getattr(module, "shift", 1.0) + module.number

    f = minidynamo.compile(program, backend="eager", fullgraph=True)

    def check():
        assert torch.equal(f(torch.ones(2)), program(torch.ones(2)))

    check()
    First.base = 3.0
    check()
    First.shift = property(lambda self: 6.0)
    check()
    module.base = 4.0
    check()
    module.__class__ = Second
    check()
    module.__class__ = types.ModuleType
    module.base, module.number = 7.0, 8.0
    check()
    module.__class__ = Second
    check()


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


class Loading(types.ModuleType):
    """Lazy packages as in libraries: parts are loaded at their first use."""

    kind = "lazy"
    doubled_shift = property(lambda self: self.parts["shift"] * 2)

    def __getattr__(self, name):
        if name not in self.parts:
            raise AttributeError(name)
        return self.parts[name]

    def shifted(self, x):
        return x + self.shift


def loading():
    module = Loading("lazy")
    module.parts = {"shift": 2.0}
    return module


def test_what_the_class_of_a_module_gives_is_guarded(monkeypatch):
    module = loading()

    def program(x):
        return module.shifted(x) + module.doubled_shift, module.kind, getattr(module, "nope", 5)

    f = minidynamo.compile(program, backend="eager", fullgraph=True)

    def check():
        assert str(f(torch.ones(2))) == str(program(torch.ones(2)))

    check()
    module.parts["shift"] = 3.0
    check()
    module.shift = 4.0
    check()
    del module.shift
    module.parts["nope"] = 6
    check()
    monkeypatch.setattr(Loading, "kind", "other")
    check()
    module.__class__ = type("Later", (Loading,), {"kind": "lazier"})
    check()


def test_a_write_that_the_class_of_a_module_takes_is_left_to_it():
    class Doubling(types.ModuleType):
        half = property(lambda self: self.whole / 2, lambda self, value: setattr(self, "whole", value * 2))

        def __setattr__(self, name, value):
            super().__setattr__(name, value * 2)

        def __delattr__(self, name):
            self.deleted = name

    def write(x, module):
        module.half = 3
        module.other = 4
        del module.other
        return x + module.half + module.other, module.deleted

    compiled, module, expected = minidynamo.compile(write, backend="eager"), Doubling("one"), Doubling("other")
    assert compiled(torch.ones(1), module) == write(torch.ones(1), expected)
    assert module.whole == expected.whole and module.other == expected.other


def test_a_module_that_can_be_asked_in_two_ways_is_asked_by_python():
    module = loading()

    def made(name):
        if name != "made":
            raise AttributeError(name)
        return 1

    vars(module)["__getattr__"] = made
    compiled = minidynamo.compile(lambda x: x + module.made + module.shift, backend="eager")
    assert compiled(torch.zeros(1)).item() == 3
