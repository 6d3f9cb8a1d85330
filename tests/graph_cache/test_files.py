"""Entries as files: complete or absent, whatever happens to the files, and limited in number."""

import errno
import json
import multiprocessing
import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minidynamo.config import config
from minidynamo.core.events import MinidynamoNotice, forget_notices
from minidynamo.graph_cache import files

CONTENT = {"key": "text", "numbers": [1, 2.5, None], "deep": {"list": ["a"] * 50}}


@pytest.fixture(autouse=True)
def cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def test_what_is_written_is_read():
    assert files.read("a-b") is None
    assert files.write("a-b", CONTENT)
    assert files.read("a-b") == CONTENT


def test_entries_are_listed_with_their_uses():
    for name in ("a-1", "a-2", "b-1"):
        files.write(name, CONTENT)
        os.utime(files.folder() / f"{name}.json", (100, 100))
    files.count_use("a-2")
    files.count_use("a-2")
    first, *others = files.entries()
    assert (first.name, first.hits, first.size > 100) == ("a-2", 2, True)
    assert [(entry.name, entry.hits, entry.used) for entry in others] == [("a-1", 0, 100), ("b-1", 0, 100)]
    assert list(files.entries_of_program("a")) == ["a-1", "a-2"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_byte_is_noticed(cache, data):
    files.write("a-b", CONTENT)
    path = files.folder() / "a-b.json"
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    forget_notices()
    with pytest.warns(MinidynamoNotice, match="MD601"):
        assert files.read("a-b") is None
    assert not path.exists()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 200))
def test_a_truncated_file_is_noticed(cache, length):
    files.write("a-b", CONTENT)
    path = files.folder() / "a-b.json"
    path.write_bytes(path.read_bytes()[:length])
    forget_notices()
    with pytest.warns(MinidynamoNotice, match="MD601"):
        assert files.read("a-b") is None


def test_a_damaged_entry_is_told_once(recwarn):
    for _ in range(2):
        files.write("a-b", CONTENT)
        (files.folder() / "a-b.json").write_bytes(b"")
        assert files.read("a-b") is None
    assert [str(warning.message)[:5] for warning in recwarn] == ["MD601"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_folder_that_cannot_be_written_costs_a_notice(error, monkeypatch):
    def fail(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.warns(MinidynamoNotice, match="MD602"):
        assert not files.write("a-b", CONTENT)
    assert files.read("a-b") is None
    assert list(files.folder().iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_a_notice(cache):
    cache.mkdir(exist_ok=True)
    (cache / "graphs").write_text("in the way")
    with pytest.warns(MinidynamoNotice, match="MD602"):
        assert not files.write("a-b", CONTENT)
    assert files.read("a-b") is None
    files.count_use("a-b")
    assert files.entries() == []
    assert files.clear() == (0, 0)


def write_forever(who):
    while True:
        files.write("a-b", {"who": who, "filling": [who] * 20000})


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_readers_of_processes_that_write_and_are_killed_see_whole_entries():
    """Two processes write the same entry at full speed, until they are killed in the middle of a write."""
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_forever, args=(who,)) for who in ("one", "two")]
    for writer in writers:
        writer.start()
    try:
        seen, until = set(), time.monotonic() + 30
        while len(seen) < 2 and time.monotonic() < until:
            found = files.read("a-b")
            if found is not None:
                assert found["filling"] == [found["who"]] * 20000
                seen.add(found["who"])
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    assert seen == {"one", "two"}
    assert files.read("a-b")["who"] in seen


def test_what_was_used_longest_ago_makes_room():
    for number in range(8):
        files.write(f"{number}-x", CONTENT)
        os.utime(files.folder() / f"{number}-x.json", (number, number))
    files.count_use("0-x")
    size = files.entries()[0].size
    files.make_room(8 * size)
    assert len(files.entries()) == 8
    files.make_room(5 * size)
    assert [entry.name for entry in files.entries()] == ["0-x", "7-x", "6-x", "5-x"]


def test_libraries_of_kernels_make_room_too(cache):
    files.write("a-x", CONTENT)
    for number in range(3):
        kernel = cache / "kernels" / str(number)
        kernel.mkdir(parents=True)
        (kernel / "library.so").write_bytes(b"x" * 1000)
        os.utime(kernel / "library.so", (number, number))
    files.make_room(files.entries()[0].size + 2999)
    assert sorted(path.name for path in (cache / "kernels").iterdir()) == ["1", "2"]


def test_the_limit_is_a_setting():
    with config.patch(cache_limit_mb=0):
        files.write("a-x", CONTENT)
    assert files.entries() == []


def test_room_is_looked_for_once_in_a_while():
    files.write("a-x", CONTENT)
    with config.patch(cache_limit_mb=0):
        files.write("b-x", CONTENT)
        assert len(files.entries()) == 2
        os.utime(files.folder() / "checked", (1, 1))
        files.write("c-x", CONTENT)
    assert files.entries() == []


def test_what_a_killed_process_left_half_written_is_removed(cache):
    files.write("a-x", CONTENT)
    old, new = files.folder() / "old.part", files.folder() / "new.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    files.make_room(1 << 20)
    assert not old.exists() and new.exists()


def test_clear_removes_everything(cache):
    files.write("a-x", CONTENT)
    (cache / "generated" / "run_1").mkdir(parents=True)
    (cache / "generated" / "run_1" / "text.py").write_text("pass")
    (cache / "other").mkdir()
    count, size = files.clear()
    assert count == 3 and size > 100
    assert [path.name for path in cache.iterdir()] == ["other"]


def test_entries_are_plain_json():
    files.write("a-x", CONTENT)
    _, body = (files.folder() / "a-x.json").read_text().split("\n")
    assert json.loads(body) == CONTENT
