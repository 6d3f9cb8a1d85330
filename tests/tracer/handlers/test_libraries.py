import os
import random
import re
import time

import numpy as np
import pytest
import torch

import minidynamo
from minidynamo.tracer.handlers import libraries
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
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


def test_random_numbers_and_their_state_are_those_of_eager():
    def f(x):
        items = [1, 2, 3, 4]
        random.shuffle(items)
        y = x * random.random() + random.randint(1, 10)
        return y + np.random.rand(), random.choice(items), random.Random(3).random(), np.random.randint(5)

    seen = []
    for function in (f, minidynamo.compile(f, backend="eager")):
        random.seed(3)
        np.random.seed(4)
        results = [function(torch.ones(2)) for _ in range(2)]
        plain = [(result[0].tolist(), *result[1:]) for result in results]
        seen.append((plain, random.getstate(), np.random.get_state()[2]))
    assert seen[0] == seen[1] and seen[0][0][0] != seen[0][0][1]


def test_clocks_run_when_the_program_does():
    def f(x):
        return x + 1, time.perf_counter()

    compiled = minidynamo.compile(f, backend="eager")
    before = time.perf_counter()
    times = [compiled(torch.ones(1))[1] for _ in range(2)]
    assert before < times[0] < times[1] < time.perf_counter()
