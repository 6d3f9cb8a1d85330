from __future__ import annotations

import multiprocessing
from fractions import Fraction

import pytest
import torch

import minidynamo
from benchmarks.coverage import Finding
from benchmarks.coverage_case import Case, Corpus, vector
from benchmarks.coverage_worker import HiddenFailure, find_out, nothing_hidden
from minidynamo.core.events import MinidynamoNotice


def finding_and_turns(fn, *makers):
    """Runs in a separate process: after a refusal, torch.compile keeps arguments of later uncompiled calls alive."""
    ours, theirs = multiprocessing.Pipe()

    def ask():
        turns = []
        found = find_out(Case(fn.__name__, fn, makers or (vector, vector)), lambda record: turns.append(record["turn"]))
        theirs.send((found, turns))

    process = multiprocessing.get_context("fork").Process(target=ask)
    process.start()
    assert ours.poll(60)
    answer = ours.recv()
    process.join()
    return answer


def finding(fn, *makers):
    return finding_and_turns(fn, *makers)[0]


def test_both_capture_it():
    found, turns = finding_and_turns(lambda x: x.sin() + 1)
    assert found == Finding("<lambda>")
    assert turns == ["eager", "torch.compile", "minidynamo"]


def test_what_eager_refuses_says_nothing():
    assert finding(lambda x: x @ torch.ones(7)).unfit.startswith("raises RuntimeError")


def test_what_is_never_the_same_says_nothing():
    calls = []
    assert finding(lambda x: (calls.append(0), x * len(calls))[1]).unfit


def test_a_program_that_asks_for_a_break_says_nothing():
    def fn(x):
        minidynamo.graph_break()
        return x + 1

    assert finding(fn).unfit == "asks minidynamo for a graph break"


def test_a_break_of_both_names_the_reason():
    def fn(x):
        print(Fraction(x.shape[0]))
        return x + 1

    found = finding(fn)
    assert found.torch.startswith("Unsupported")
    assert found.ours == "MD233 `print` | print(Fraction(x.shape[0]))"
    assert not found.differs


def test_a_difference_is_found(monkeypatch):
    monkeypatch.setattr("minidynamo.compile", lambda fn, **options: lambda x: fn(x) + 1e-3)
    assert "result" in finding(lambda x: x * 2).differs


def test_every_program_stands_in_the_corpus_once():
    programs = Corpus()

    @programs(vector)
    def one(x):
        return x

    assert [case.name for case in programs] == ["one"]
    assert len(programs[0].makers) == 2


class Inner(torch.nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.provokes_failures
def test_a_failure_that_a_second_run_hides_is_found():
    inner = minidynamo.compile(Inner(), backend=lambda gm, inputs: minidynamo.make_boxed_func(lambda *args: 1 / 0))
    with pytest.warns(MinidynamoNotice), pytest.raises(HiddenFailure, match="MD523"), nothing_hidden():
        inner(vector())
    with nothing_hidden():
        minidynamo.compile(Inner(), backend="eager")(vector())
