"""The cache of built libraries: hits, damage, failures, a folder that cannot be written."""

import pytest

from minidynamo.codegen.runtime import disk_cache
from minidynamo.config import config


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


def test_without_a_writable_folder_it_is_built_for_this_process(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    build = Builder()
    with config.patch(cache_dir=str(blocked)):
        assert disk_cache.fetch("text", build).read_bytes() == b"library"
    assert build.calls == 1
