"""Tests of minidynamo/observe/logs.py."""

import logging
import subprocess
import sys

import pytest
import torch

import minidynamo
from minidynamo.errors import UnknownName
from minidynamo.observe.logs import LOGS, listing, selected_levels


def test_the_grammar_is_that_of_torch():
    assert selected_levels("") == {}
    assert selected_levels("recompiles, +guards,-graph_code") == {
        "recompiles": logging.INFO,
        "guards": logging.DEBUG,
        "graph_code": logging.ERROR,
    }
    assert selected_levels("all,-guards") == {**dict.fromkeys(LOGS, logging.INFO), "guards": logging.ERROR}
    with pytest.raises(UnknownName, match=r"there is no log 'recompile'. Did you mean 'recompiles'"):
        selected_levels("recompile")


def log_of(capsys, logs, backend="eager"):
    @minidynamo.compile(backend=backend, dynamic=False)
    def f(x, n):
        x = x * n
        minidynamo.graph_break()
        return x + 1

    with minidynamo.config.patch(logs=logs):
        f(torch.ones(2), 2)
        f(torch.ones(2), 3)
    f(torch.ones(2), 4)
    return capsys.readouterr().err


def test_recompiles(capsys):
    text = log_of(capsys, "recompiles")
    lines = text.splitlines()
    assert all(line.startswith("[recompiles] ") for line in lines)
    assert sum("MD301" in line and "recompiled" in line for line in lines) == 1
    assert "value of `n`: expected 2, got 3" in text and "x = x * n" in text
    assert "version 0: value of `n`" in log_of(capsys, "+recompiles")


def test_breaks_guards_and_code(capsys):
    text = log_of(capsys, "graph_breaks,guards,graph_code,-bytecode")
    assert "[graph_breaks] MD223" in text
    assert "value of `n`: 2" in text
    assert "[graph_code] " in text and "mul" in text
    assert "[bytecode]" not in text and "[recompiles]" not in text


@pytest.mark.cpp
def test_output_code(capsys):
    assert "call(args)" in log_of(capsys, "output_code", backend="native")


def test_nothing_listens_when_nothing_is_asked_for(capsys):
    assert log_of(capsys, "") == "" and log_of(capsys, "-guards") == ""


def test_help_lists_the_logs(capsys):
    with minidynamo.config.patch(logs="help"):
        assert listing() in capsys.readouterr().err


def test_an_unknown_name_on_the_command_line_is_told_at_once():
    environment = {"MINIDYNAMO_LOGS": "graph_brakes", "PATH": ""}
    command = [sys.executable, "-c", "import minidynamo"]
    failed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert failed.returncode == 1 and "Did you mean 'graph_breaks'" in failed.stderr
