"""Partial reads of immutable values: the answer alone is guarded, and equals eager's."""

from __future__ import annotations

import datetime

import pytest
import torch

import minidynamo

X = torch.arange(6.0)


def guards(fn, *args):
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True, dynamic=False)
    compiled(X, *args)
    return str(compiled.guards())


def test_the_answer_is_guarded_and_not_the_value():
    shown = guards(lambda x, r: x * r.start, range(2, 5))
    assert "value of `r.start`: 2" in shown and "range" not in shown.replace("type of `r`: range", "")
    assert "value of `v.lower()`: 'sum'" in guards(lambda x, v: x if v.lower() == "sum" else x * 2, "Sum")


def test_a_value_that_is_needed_as_a_whole_is_guarded_once():
    shown = guards(lambda x, v, table: x * table[v] if v.startswith("a") and len(v) > 1 else x, "ab", {"ab": 2})
    assert "value of `v`: 'ab'" in shown and "startswith" not in shown and "len(v)" not in shown


def texts(x, v):
    found = v.startswith("a"), "b{" in v, "b" in v, v.find("b"), v.count("b"), v.isdigit(), bool(v), len(v)
    return x * len(v), found, v[:1], v[-1:], v.upper().lower().startswith("ab"), len(v.strip())


def indexed(x, v):
    return x * 2 if v[0] == "a" and v[-1] == "c" else x


def ranges(x, v):
    return x * v.start, v.stop, v.step, len(v), 3 in v, v[0] if v else None, [*v]


def slices(x, v):
    return x[v], v.start, v.stop is None, v.step or 1


def dates(x, v):
    return x * v.day, v.year if v.month > 3 else 0, v < datetime.date(2021, 1, 1)


def complexes(x, v):
    return x * v.real, v.imag > 0, v


VALUES = {
    texts: ["abc", "xbc", "", "ab{c}", "12", "  a "],
    indexed: ["abc", "ac", "xc", ""],
    ranges: [range(2, 5), range(0, 5, 2), range(4, 1, -1), range(0), range(7)],
    slices: [slice(2, 5), slice(None), slice(0, None, 2), slice(1, 3)],
    dates: [datetime.date(2020, 5, 1), datetime.date(2020, 2, 1), datetime.date(2022, 5, 9)],
    complexes: [1 + 2j, 1 - 2j, complex(-0.0, 1.0), complex(0.0, 1.0), complex(float("nan"), 0)],
}


@pytest.mark.parametrize("program", VALUES, ids=lambda program: program.__name__)
def test_answers_are_those_of_eager(program):
    compiled = minidynamo.compile(program, backend="eager")
    for value in (*VALUES[program], *VALUES[program]):
        results = []
        for function in (program, compiled):
            try:
                results.append(repr(function(X, value)))
            except IndexError as error:
                results.append(repr(error))
        assert results[0] == results[1]


def test_a_length_that_varies_becomes_a_number():
    compiled = minidynamo.compile(lambda x, v: x * len(v), backend="eager")
    for text in ("a", "bc", "def", "ghij", "klmno"):
        assert torch.equal(compiled(X, text), X * len(text))
    assert compiled.stats.compiles == 2
