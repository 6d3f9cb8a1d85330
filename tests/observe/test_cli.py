from __future__ import annotations

import os
import re
import runpy
import sys

import pytest

from minidynamo.config import config
from minidynamo.graph_cache import files
from minidynamo.observe import cli


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


def test_explain_lists_the_codes_that_begin_so(page, capsys):
    assert cli.main(["explain", "md3"]) == 0
    assert capsys.readouterr().out == "MD301 recompiled\n"


def test_explain_of_an_unknown_code_names_the_nearest(page, capsys):
    assert cli.main(["explain", "MD210"]) == 2
    assert "There is no code MD210. Did you mean 'MD201'?" in capsys.readouterr().err


def test_without_the_page_the_places_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "ERROR_PAGES", (tmp_path / "missing.md",))
    with pytest.raises(FileNotFoundError, match=r"missing\.md"):
        cli.main(["explain", "MD201"])


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert not stopped.value.code and re.fullmatch(r"minidynamo (\d+\.\d+\S*|from a folder)\n", capsys.readouterr().out)


def test_a_reader_that_stops_early_ends_it_in_peace(stored, monkeypatch, capsys):
    def closed(*args, **others):
        raise BrokenPipeError

    monkeypatch.setattr(cli, "list_cache", closed)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert cli.main(["cache", "ls"]) == 0
    sys.stdout.close()  # a file that swallows Python's last writes at exit
    assert capsys.readouterr().err == ""


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


def test_doctor_fails_without_a_compiler_and_without_a_cache_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with config.patch(cxx="no-such-compiler", cache_dir=str(tmp_path / "file" / "cache")):
        assert cli.main(["doctor"]) == 1
        rows = [row for check in cli.CHECKS for row in check()]
    notes = {what: found for state, what, found in rows if state == cli.BAD}
    assert "torch's own kernels" in notes["C++ compiler"]
    assert "compiles anew" in notes["cache folder"]


def test_it_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["minidynamo", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("minidynamo", run_name="__main__")
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "doctor" in shown and "explain" in shown


KEY = "program:\n  x = input\n  sin = torch.sin(%x)\nenvironment:\n  torch: 2.13\n"


@pytest.fixture
def stored(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        files.write("aa11-00", {"key": KEY, "description": "train.py:3 in step, 12 operations, forward and backward"})
        files.write("aa22-00", {"key": KEY.replace("sin", "cos"), "description": "train.py:3 in step"})
        files.write("bb33-00", {"key": KEY, "description": "train.py:9 in test"})
        os.utime(files.folder() / "bb33-00.json", (0, 0))
        files.count_use("aa11-00")
        yield


def test_cache_ls_lists_the_entries(stored, capsys):
    assert cli.main(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["key", "size", "used", "uses", "what"]
    first = next(line for line in lines if line.startswith("aa11-00"))
    assert "just now" in first and first.endswith("  1  train.py:3 in step, 12 operations, forward and backward")
    assert lines[3].startswith("bb33-00") and " d ago" in lines[3]
    assert lines[4].startswith("3 graphs, 0.0 MiB, in ")


def test_cache_why_prints_the_lines_that_differ(stored, capsys):
    assert cli.main(["cache", "why", "aa1", "aa2"]) == 0
    assert capsys.readouterr().out == "- sin = torch.sin(%x)\n+ cos = torch.cos(%x)\n"
    assert cli.main(["cache", "why", "aa1", "bb"]) == 0
    assert capsys.readouterr().out == "The keys are the same.\n"


@pytest.mark.parametrize(("key", "said"), [("zz", "There is no entry"), ("aa", "2 entries have a key")])
def test_cache_why_of_an_unknown_key(stored, capsys, key, said):
    assert cli.main(["cache", "why", "bb", key]) == 2
    assert said in capsys.readouterr().err


def test_cache_clear_removes_everything(stored, capsys):
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("Removed 5 files, 0.0 MiB, from ")
    cli.main(["cache", "ls"])
    assert "0 graphs" in capsys.readouterr().out


def test_a_cache_command_needs_an_action(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["cache"])
    assert stopped.value.code == 2


@pytest.mark.parametrize(("seconds", "text"), [(5, "just now"), (120, "2 min ago"), (7200, "2 h ago")])
def test_ages(seconds, text):
    assert cli.age(seconds) == text


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("FACTOR = 3\n")
    file = tmp_path / "train.py"
    file.write_text(
        "import sys\nimport torch\nimport minidynamo\nfrom beside import FACTOR\n\n"
        "f = minidynamo.compile(lambda x: x * FACTOR, backend='eager')\n"
        "if __name__ == '__main__':\n    print(f(torch.ones(2)).tolist(), sys.argv[1:])\n    sys.exit(len(sys.argv))\n"
    )
    return file


def test_a_script_runs_and_what_it_compiled_is_reported(script, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(script), "--steps", "3"])
    assert stopped.value.code == 3
    printed = capsys.readouterr()
    assert printed.out == "[3.0, 3.0] ['--steps', '3']\n"
    assert f"minidynamo, of {script}: 1 version of 1 frame, 1 graph (0 found on disk), 0 graph breaks" in printed.err


def test_a_script_that_is_not_there(tmp_path, capsys):
    assert cli.main(["run", str(tmp_path / "train.py")]) == 2
    assert "There is no script" in capsys.readouterr().err
