from __future__ import annotations

import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from benchmarks import libraries
from benchmarks.libraries import COLUMNS, TOLERANCE, Finding, Seen, measure, missing, read
from benchmarks.library_programs import PROGRAMS
from benchmarks.library_worker import INPUTS, STEPS, difference, tensors_in
from benchmarks.tables import markdown

EQUAL = Seen(graphs=3, breaks=0, seconds=1.25)
ROUNDED = Seen(graphs=3, results=TOLERANCE / 2)
RAISES = Seen(error="RuntimeError: no")


def test_gradients_count_as_results_do():
    assert Finding("equal", False, EQUAL, EQUAL).failure == ""
    assert Finding("results", False, ROUNDED, EQUAL).failure == "differs from eager"
    assert Finding("gradients", False, Seen(3, gradients=1e-9), EQUAL).failure == "differs from eager"


def test_only_a_library_with_another_path_may_round_otherwise():
    assert Finding("path", True, ROUNDED, EQUAL).failure == ""
    assert Finding("path", True, Seen(3, results=2 * TOLERANCE), EQUAL).failure == "differs from eager"


def test_more_graphs_than_with_torch_compile_fail():
    assert Finding("more", False, Seen(4), EQUAL).failure == "more graphs"
    assert Finding("fewer", False, EQUAL, Seen(4)).failure == ""
    assert Finding("no measure", False, Seen(4), RAISES).failure == ""
    assert Finding("ours", False, RAISES, RAISES).failure == "RuntimeError: no"


def test_a_row_says_who_raised():
    row = Finding("bert", False, EQUAL, RAISES).row()
    assert row == ["bert", "3", "raises", "0", "raises", "0", "0", "1.2", "raises", "pass"]
    table = markdown(COLUMNS, [Finding("bert", False, EQUAL, EQUAL).row()])
    assert table.splitlines()[2].startswith("| bert | 3 | 3 | 0 |")


def test_a_finding_comes_out_of_its_process_as_it_went_in():
    finding = Finding("bert", True, Seen(3, 1, math.inf, 1e-7, 2.0), RAISES)
    assert read(json.loads(json.dumps(asdict(finding)))) == finding


def test_a_process_that_dies_fails_the_model(monkeypatch):
    done = SimpleNamespace(returncode=-11, stderr="Fatal error\n", stdout="")
    monkeypatch.setattr(libraries.subprocess, "run", lambda *args, **kwargs: done)
    assert measure("bert").failure == "the process ended with -11: Fatal error"


def test_packages_that_are_missing_are_named(monkeypatch, capsys):
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    assert missing(["bert"]) == ["transformers"]
    assert missing(["bert", "llama-lora"]) == ["peft", "transformers"]
    with pytest.raises(SystemExit):
        libraries.main(["llama-lora"])
    assert "needs peft and transformers: python -m pip install -e '.[libraries]'" in capsys.readouterr().err


def test_a_difference_is_a_share_of_the_largest_element():
    expected = torch.tensor([1.0, -4.0, math.nan, math.inf])
    assert difference([expected.clone()], [expected]) == 0.0
    assert difference([torch.tensor([3.0, -4.0, math.nan, math.inf])], [expected]) == 0.5
    assert difference([torch.tensor([1.0, -4.0, 0.0, math.inf])], [expected]) == math.inf
    assert difference([torch.tensor([1.0, -4.0, math.nan, -math.inf])], [expected]) == math.inf


def test_another_shape_type_or_number_of_tensors_is_infinitely_far():
    one = torch.ones(2)
    others = (torch.ones(3), torch.ones(2, dtype=torch.float64), None)
    assert all(difference([other], [one]) == math.inf for other in others)
    assert difference([one, None], [one, None]) == 0.0
    assert difference([one], [one, one]) == math.inf


def test_caches_of_keys_and_values_are_results():
    key, value, logits = torch.ones(1), torch.ones(2), torch.ones(3)
    cache = SimpleNamespace(layers=[SimpleNamespace(keys=key, values=value)])
    found = list(tensors_in({"logits": logits, "past_key_values": cache, "loss": None}))
    assert [id(tensor) for tensor in found] == [id(logits), id(key), id(value)]


@pytest.mark.parametrize("name", sorted({program.inputs for program in PROGRAMS.values()}))
def test_every_program_has_inputs_of_the_size_that_the_step_asks_for(name):
    for step in STEPS:
        assert {len(tensor) for tensor in INPUTS[name](step).values()} == {step.batch}
