from __future__ import annotations

import inspect
import linecache
import os
import traceback
from pathlib import Path

import pytest

from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import MinidynamoNotice, on_event


@pytest.fixture
def folder(tmp_path):
    with config.patch(debug_dir=str(tmp_path / "code")):
        yield tmp_path / "code"


def test_a_text_is_written_where_the_settings_say(folder):
    path = Path(artifacts.write("kernel", "f.<locals>.g", "int x;", suffix=".cpp"))
    assert path.parent == folder == artifacts.code_dir()
    assert path.name.endswith("_kernel_f_locals_g.cpp")
    assert path.read_text() == "int x;"


def test_texts_of_what_calls_the_program_lie_in_a_folder_that_warnings_pass_over(folder):
    for kind in ("dispatch", "frozen", "native", "residual"):
        assert Path(artifacts.write(kind, "f", "1")).parent == folder / "importlib_bootstrap"


def test_two_texts_of_one_name_are_two_files(folder):
    assert artifacts.write("host", "f", "1") != artifacts.write("host", "f", "2")


def test_without_a_debug_folder_texts_go_below_the_cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path)):
        assert artifacts.cache_dir() == tmp_path
        assert Path(artifacts.write("host", "", "x")).is_relative_to(tmp_path / "generated")
    with config.patch(cache_dir=""):
        assert artifacts.cache_dir().name == "minidynamo"


def test_texts_of_processes_are_removed_when_none_was_written_for_long(tmp_path):
    for name in ("run_1", "run_2", "notes"):
        (tmp_path / "generated" / name).mkdir(parents=True)
        (tmp_path / "generated" / name / "text.py").write_text("1")
    for name in ("run_1", "notes"):
        os.utime(tmp_path / "generated" / name, (0, 0))
    with config.patch(cache_dir=str(tmp_path)):
        artifacts.write("host", "", "x")
    left = {path.name for path in (tmp_path / "generated").iterdir()}
    assert left == {"run_2", "notes", f"run_{os.getpid()}"}


def test_a_loaded_function_shows_its_source_in_tracebacks(folder):
    function = artifacts.load("residual", "f", "def f(x):\n    return one / x\n", {"one": 1}, "f")
    assert function(2) == 0.5
    assert inspect.getsource(function) == "def f(x):\n    return one / x\n"
    with pytest.raises(ZeroDivisionError) as caught:
        function(0)
    linecache.checkcache()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "return one / x"


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with config.patch(debug_dir=str(tmp_path / "file" / "below")):
        function = artifacts.load("residual", "f", "def f():\n    return 1\n", {}, "f")
    assert function() == 1
    assert inspect.getsource(function).startswith("def f():")


def test_each_text_is_announced(folder):
    seen = []
    unsubscribe = on_event(seen.append)
    path = artifacts.write("graph", "f", "text")
    unsubscribe()
    (event,) = seen
    assert (event.kind, event.name) == ("artifact", "graph")
    assert (event.data["path"], event.data["text"]) == (path, "text")


def test_texts_are_collected_where_they_are_written_and_later(folder):
    with artifacts.collected() as outer:
        artifacts.write("graph", "f", "1")
        with artifacts.collected() as inner:
            path = artifacts.write("host", "f", "2")
            later = artifacts.collecting(lambda name: artifacts.write("aten", name, "3"))
    artifacts.write("graph", "f", "4")
    later("g")
    assert [text.text for text in outer] == ["1"]
    assert [(text.kind, text.name, text.text) for text in inner] == [("host", "f", "2"), ("aten", "g", "3")]
    assert inner[0].section() == f"# host program of f: {path}\n2"


def of_another_user(stat):
    return lambda *path, **how: os.stat_result((*(facts := stat(*path, **how))[:4], 12345, *facts[5:]))


UNUSABLE = {
    "a file in the way": lambda folder, _: (folder.rmdir(), folder.write_text("a file")),
    "writable for all": lambda folder, _: folder.chmod(0o777),
    "of another user": lambda _, patch: patch.setattr(os, "stat", of_another_user(os.stat)),
    "not readable": lambda folder, patch: patch.setattr(os, "access", lambda path, how: str(path) != str(folder)),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_cache_folder_that_cannot_be_trusted_is_replaced_by_a_private_one(kind, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    UNUSABLE[kind](folder, monkeypatch)
    with config.patch(cache_dir=str(folder)):
        with pytest.warns(MinidynamoNotice, match="MD604 the cache folder .* is not used"):
            used = artifacts.cache_dir()
        assert used != folder and artifacts.cache_dir() == used
        assert used.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["x" * 300, "\udcff\0"])
def test_a_cache_folder_without_a_possible_name(name, tmp_path):
    with config.patch(cache_dir=f"{tmp_path}/{name}"), pytest.warns(MinidynamoNotice, match="MD604"):
        assert artifacts.cache_dir().is_dir()


@pytest.mark.parametrize("name", ["f" * 400, "größe_漢" * 40, "\udc80", ""])
def test_any_name_of_a_function_makes_a_file(name, folder):
    path = Path(artifacts.write("graph", name, "text"))
    assert path.read_text() == "text" and path.name.isascii()
