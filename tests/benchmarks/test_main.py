"""Tests which measurements a command line selects."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Result


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns the measurements that a command runs, in order, instead of measuring."""
    names: list[object] = []

    def measurement(name: str) -> None:
        def measure(quick: bool) -> Iterator[Result]:
            names.append((name, quick))
            return iter(())

        monkeypatch.setitem(command.MEASUREMENTS, name, measure)

    for name in command.MEASUREMENTS:
        measurement(name)
    for name in command.OWN_TABLES:
        monkeypatch.setitem(command.OWN_TABLES, name, lambda arguments, name=name: names.append((name, arguments)))
    monkeypatch.setattr(subprocess, "run", lambda words, check: names.append(words[-1]))
    return names


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    command.main()


def test_a_table_of_its_own_gets_the_rest_of_the_command(ran: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "libraries", "vit", "--markdown")
    assert ran == [("libraries", ["vit", "--markdown"])]


def test_tables_of_both_kinds_run_in_one_command(ran: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "blocks", "small", "layers", "cold", "--quick")
    assert ran == [("small", True), ("cold", True), "blocks", "layers"]


def test_without_a_name_the_common_table_is_whole(ran: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch)
    assert ran == [(name, False) for name in command.MEASUREMENTS]


def test_an_unknown_name_is_told(ran: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "small", "blocs")
    assert ran == []
