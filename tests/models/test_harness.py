"""The comparison itself: it detects wrong values, and accepts rounding."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.library_programs import PROGRAMS
from tests.models.cases import CASES, PARTS, rotating
from tests.models.table import TABLE, complaints, row_of
from tests.models.training import Counts, Run, differences

JUDGE = {
    "step 0, gradient: a": torch.tensor([1.0, -2.0], dtype=torch.float64),
    "step 0, gradient: b": torch.tensor([1e-9, 0.0], dtype=torch.float64),
    "step 0, gradient: unused": None,
    "step 0, buffer: count": torch.tensor(3),
}
EAGER = {
    name: value.float() if value is not None and value.is_floating_point() else value for name, value in JUDGE.items()
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", torch.tensor([1.0, -2.001])),
        ("a", torch.tensor([1.0, float("nan")])),
        ("a", torch.tensor([1.0, -2.0], dtype=torch.float64)),
        ("a", torch.tensor([[1.0, -2.0]])),
        ("a", None),
        ("b", torch.tensor([1e-3, 0.0])),
        ("unused", torch.zeros(2)),
    ],
)
def test_a_wrong_gradient_is_found(name, value):
    (found,) = differences({**EAGER, f"step 0, gradient: {name}": value}, EAGER, JUDGE)
    assert found.startswith(f"step 0, gradient: {name}: ")


def test_a_wrong_count_is_found_and_a_missing_value():
    assert differences({**EAGER, "step 0, buffer: count": torch.tensor(4)}, EAGER, JUDGE)
    assert differences(dict(list(EAGER.items())[1:]), EAGER, JUDGE)


def test_rounding_is_accepted():
    rounded = {**EAGER, "step 0, gradient: a": torch.tensor([1.0 + 1e-6, -2.0]), "step 0, gradient: b": torch.zeros(2)}
    assert differences(rounded, EAGER, JUDGE) == []
    eager = {**EAGER, "step 0, gradient: a": torch.tensor([1.001, -2.0])}
    assert differences({**EAGER, "step 0, gradient: a": torch.tensor([1.0, -2.002])}, eager, JUDGE) == []


def test_an_ill_conditioned_model_is_no_measure():
    eager = {**EAGER, "step 0, gradient: a": torch.tensor([2.0, -2.0])}
    assert differences(eager, eager, JUDGE) == ["step 0, gradient: a: eager itself is 1 off, of 2"]


def test_a_peak_is_on_the_list_exactly_while_it_exceeds_eagers():
    def run(peak, graphs=1):
        return {"native": Run([], Counts(graphs=graphs), peak)}

    listed, clean = row_of(run(1.2)), row_of(run(1.005))
    assert listed["peaks"] == {"native": 1.2} and clean["peaks"] == {}
    assert complaints(listed, run(1.3)) == complaints(clean, run(0.9)) == complaints(listed, run(1.005)) == []
    assert "listed as 1.2" in complaints(listed, run(1.0))[0]
    assert "1.020" in complaints(clean, run(1.02))[0]
    assert "2 graphs, 1 known" in complaints(clean, run(1.0, graphs=2))[0]


def test_three_interpreters_run_different_models_and_twenty_days_run_all():
    def normal(day, minor):
        return {row.values[0] for row in rotating(CASES, day, minor) if not row.marks}

    parts = [normal(7, minor) for minor in (11, 12, 13)]
    assert len(set.union(*parts)) == sum(map(len, parts))
    assert set.union(*(normal(day, 11) for day in range(PARTS))) == set(CASES)


def test_the_table_has_a_row_for_each_model():
    assert list(json.loads(TABLE.read_text(encoding="utf-8"))) == sorted(CASES)
    classes = {program.model for name, program in PROGRAMS.items() if name in CASES and program.config}
    assert len(classes) >= 60
