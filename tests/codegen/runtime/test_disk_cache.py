"""The cache of built libraries: hits, damage, failures, a read-only folder."""

import atexit
import functools
import multiprocessing
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minidynamo.codegen.runtime import disk_cache
from minidynamo.config import config
from minidynamo.core import artifacts


class Builder:
    def __init__(self, content: bytes = b"library") -> None:
        self.calls = 0
        self.content = content

    def __call__(self, path) -> None:
        self.calls += 1
        path.write_bytes(self.content)


@pytest.fixture(autouse=True)
def cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def test_the_same_text_is_built_once():
    build = Builder()
    first = disk_cache.fetch("text", build)
    assert disk_cache.fetch("text", build) == first
    assert build.calls == 1
    assert first.read_bytes() == b"library"
    assert (first.parent / "key.txt").read_text() == "text"


def test_another_text_is_another_entry():
    build = Builder()
    assert disk_cache.fetch("text", build) != disk_cache.fetch("other", build)
    assert build.calls == 2
    assert len(list(disk_cache.entries())) == 2


def test_an_altered_library_is_built_again():
    build = Builder()
    disk_cache.fetch("text", build).write_bytes(b"libr")
    assert disk_cache.fetch("text", build).read_bytes() == b"library"
    assert build.calls == 2


def test_a_discarded_library_is_built_again():
    build = Builder()
    disk_cache.discard(disk_cache.fetch("text", build))
    disk_cache.fetch("text", build)
    assert build.calls == 2


def test_a_failed_build_leaves_no_entry(cache):
    def fail(path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        disk_cache.fetch("text", fail)
    assert list(disk_cache.entries()) == []
    assert not list(cache.rglob("*.part"))


def test_without_a_writable_folder_it_is_built_for_this_process(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    build, at_exit = Builder(), []
    monkeypatch.setattr(
        atexit, "register", lambda *call, **options: at_exit.append(functools.partial(*call, **options))
    )
    monkeypatch.setattr(artifacts, "cache_dir", lambda: blocked)
    library = disk_cache.fetch("text", build)
    assert build.calls == 1 and library.read_bytes() == b"library"
    (end,) = at_exit
    end()
    assert not library.parent.exists()


def test_a_file_system_that_runs_nothing_holds_no_library(cache, monkeypatch):
    facts = os.statvfs(cache.parent)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*facts[:8], os.ST_NOEXEC, *facts[9:])))
    assert cache not in disk_cache.fetch("text", Builder()).parents


def test_a_folder_that_is_removed_meanwhile_is_no_obstacle(cache):
    def build(path) -> None:
        if cache in path.parents:
            shutil.rmtree(cache)
        path.write_bytes(b"library")

    assert disk_cache.fetch("text", build).read_bytes() == b"library"


def test_a_full_disk_is_no_obstacle(monkeypatch, cache):
    monkeypatch.setattr(disk_cache, "ROOM_BYTES", 1 << 62)
    build = Builder()
    assert cache not in disk_cache.fetch("text", build).parents
    assert list(disk_cache.entries()) == []


def test_a_disk_that_fills_up_is_no_obstacle(monkeypatch, cache):
    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache, "write_bytes", full)
    build = Builder()
    assert disk_cache.fetch("text", build).read_bytes() == b"library"
    assert build.calls == 1


def test_a_use_is_noted():
    build = Builder()
    path = disk_cache.fetch("text", build)
    os.utime(path, (1, 1))
    disk_cache.fetch("text", build)
    assert path.stat().st_mtime > 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 6), flip=st.integers(1, 255))
def test_a_flipped_byte_is_noticed(position, flip):
    build = Builder()
    path = disk_cache.fetch("text", build)
    raw = bytearray(path.read_bytes())
    raw[position] ^= flip
    path.write_bytes(raw)
    assert disk_cache.fetch("text", Builder()).read_bytes() == b"library"


def build_forty():
    for number in range(40):
        path = disk_cache.fetch(f"text {number}", lambda path: path.write_bytes(b"x" * 100000))
        assert path.read_bytes() == b"x" * 100000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_build_the_same_libraries_at_once(cache):
    processes = [multiprocessing.get_context("fork").Process(target=build_forty) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert len(list(disk_cache.entries())) == 40
    assert not list(cache.rglob("*.part"))
