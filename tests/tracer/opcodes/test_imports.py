# The programs keep the style of users, against the advice of linters.
# ruff: noqa: I001, PLC0415

# ruff: noqa: I001

import sys
import types

import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    def modules_that_are_loaded(x):
        import math
        import os.path
        from torch.nn import functional as F

        return F.relu(x) * math.pi, os.path.sep


def test_whether_a_module_has_the_name_is_guarded():
    module = types.ModuleType("tests_part")

    def program(x):
        try:
            from tests_part import name
        except ImportError:
            name = 5
        return x + name

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    sys.modules["tests_part"] = module
    try:
        assert torch.equal(compiled(x), x + 5)
        module.name = 2
        assert torch.equal(compiled(x), x + 2)
        del module.name
        assert torch.equal(compiled(x), x + 5)
        assert compiled.stats.compiles == 2
    finally:
        del sys.modules["tests_part"]


def test_a_loaded_module_that_is_no_attribute_of_its_package():
    def program(x):
        from tests_package import part

        return x + part.number

    compiled = minidynamo.compile(program, backend="eager")
    sys.modules |= {name: types.ModuleType(name) for name in ("tests_package", "tests_package.part")}
    sys.modules["tests_package.part"].number = 3
    try:
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    finally:
        del sys.modules["tests_package"], sys.modules["tests_package.part"]
