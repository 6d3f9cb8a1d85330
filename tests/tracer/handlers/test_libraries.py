import os
import re

import pytest
import torch

import minidynamo
from minidynamo.tracer.handlers import libraries
from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs()
def joined(x):
    return x + 1, ",".join(str(n) for n in range(3)), "-".join(map(str, [1, 2])), b"".join([b"a", b"b"])


@programs()
def joining_numbers_raises(x):
    try:
        return ",".join([1, 2])
    except TypeError as error:
        return str(error), x * 2


@programs(breaks=1)
def replacing_by_a_function_breaks(x):
    y = x + 1
    return y, re.sub("a", lambda found: found.group(0).upper(), "banana")


def test_environment_variables_are_guarded_one_by_one(monkeypatch):
    def f(x):
        return x * int(os.environ.get("MINIDYNAMO_TEST_FACTOR", "3"))

    counter = minidynamo.testing.CompileCounter()
    compiled = minidynamo.compile(f, backend=counter)
    x = torch.ones(1)
    assert compiled(x).item() == 3
    monkeypatch.setenv("MINIDYNAMO_TEST_OTHER", "1")
    assert compiled(x).item() == 3 and counter.frame_count == 1
    monkeypatch.setenv("MINIDYNAMO_TEST_FACTOR", "5")
    assert compiled(x).item() == 5 and counter.frame_count == 2
    monkeypatch.setenv("MINIDYNAMO_TEST_FACTOR", "7")
    assert compiled(x).item() == 7
    monkeypatch.delenv("MINIDYNAMO_TEST_FACTOR")
    assert compiled(x).item() == 3


def test_the_twin_of_an_environment_lookup(monkeypatch):
    monkeypatch.setenv("MINIDYNAMO_TEST_FACTOR", "5")
    assert libraries.environment_variable(os.environ, "MINIDYNAMO_TEST_FACTOR") == "5"
    monkeypatch.delenv("MINIDYNAMO_TEST_FACTOR")
    with pytest.raises(KeyError):
        libraries.environment_variable(os.environ, "MINIDYNAMO_TEST_FACTOR")


def test_another_pattern_is_noticed():
    def f(x, pattern):
        return x * len(pattern.findall("a1b22"))

    compiled = minidynamo.compile(f, backend="eager")
    assert [compiled(torch.ones(1), re.compile(text)).item() for text in (r"\d", r"\d+", "[ab]", "z")] == [3, 2, 2, 0]
