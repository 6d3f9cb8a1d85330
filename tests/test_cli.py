from __future__ import annotations

import subprocess
import sys

import pytest

from minidynamo import cli
from minidynamo.config import config


@pytest.fixture
def page(tmp_path, monkeypatch):
    file = tmp_path / "errors.md"
    file.write_text(
        "# Errors\n\nIntroduction.\n\n# MD2xx capture\n\n## MD201 `if` on a tensor\n\nWhy.\n\n"
        "```python\nf()\n```\n\n# MD3xx guards\n\n## MD301 recompiled\n\nBecause.\n"
    )
    monkeypatch.setattr(cli, "ERROR_PAGES", (tmp_path / "missing.md", file))


def test_explain_prints_one_entry(page, capsys):
    assert cli.main(["explain", "md201"]) == 0
    assert capsys.readouterr().out == "MD201 `if` on a tensor\n\nWhy.\n\n```python\nf()\n```\n"


def test_explain_lists_all(page, capsys):
    assert cli.main(["explain", "all"]) == 0
    assert capsys.readouterr().out == "MD201 `if` on a tensor\nMD301 recompiled\n"


def test_explain_of_an_unknown_code_names_the_nearest(page, capsys):
    assert cli.main(["explain", "MD210"]) == 2
    assert "There is no code MD210. Did you mean 'MD201'?" in capsys.readouterr().err


def test_without_the_page_the_places_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "ERROR_PAGES", (tmp_path / "missing.md",))
    with pytest.raises(FileNotFoundError, match=r"missing\.md"):
        cli.main(["explain", "MD201"])


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_doctor_shows_the_machine(capsys):
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for what in ("python", "torch", "C++ compiler", "OpenMP", "CPU threads", "cache folder"):
        assert what in text


def test_doctor_notes_a_missing_compiler_and_an_unwritable_cache(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with config.patch(cxx="no-such-compiler", cache_dir=str(tmp_path / "file" / "cache")):
        assert cli.main(["doctor"]) == 0
        rows = [row for check in cli.CHECKS for row in check()]
    notes = {what: found for state, what, found in rows if state == cli.NOTE}
    assert "torch's own kernels" in notes["C++ compiler"]
    assert "compiles anew" in notes["cache folder"]


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "minidynamo", "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout and "explain" in done.stdout
