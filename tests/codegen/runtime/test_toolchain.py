"""Finding the compiler, the flags, and the message without a compiler."""

import dataclasses

import pytest

from minidynamo.codegen.runtime import toolchain
from minidynamo.config import config
from minidynamo.core.events import on_event
from minidynamo.errors import KernelBuildError, ToolchainMissing


def test_no_compiler_is_a_clear_error():
    with config.patch(cxx="/nowhere/g++"), pytest.raises(ToolchainMissing, match="no C\\+\\+ compiler") as caught:
        toolchain.find_toolchain()
    assert caught.value.code == "MD501"
    assert "/nowhere/g++" in str(caught.value)


def test_an_empty_path_has_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainMissing, match=r"c\+\+, g\+\+, clang\+\+"):
        toolchain.find_toolchain()


def test_a_compiler_that_does_not_run_is_named(tmp_path):
    broken = tmp_path / "broken-g++"
    broken.write_text("#!/bin/sh\necho no licence >&2\nexit 1\n")
    broken.chmod(0o755)
    with config.patch(cxx=str(broken)), pytest.raises(KernelBuildError, match="no licence") as caught:
        toolchain.find_toolchain()
    assert caught.value.code == "MD502" and str(broken) in str(caught.value)


@pytest.mark.cpp
def test_a_broken_compiler_is_passed_over_when_another_one_runs(tmp_path, monkeypatch):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    working = toolchain.find_toolchain().command
    (tmp_path / "g++").symlink_to(working)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain.find_toolchain().command == str(tmp_path / "g++")


def test_a_compiler_that_fails_later_gives_its_message(tmp_path):
    broken = tmp_path / "broken-g++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\necho disk full >&2\nexit 3\n')
    broken.chmod(0o755)
    with config.patch(cxx=str(broken)):
        found = toolchain.find_toolchain()
        assert found.version == "broken 1.0"
        with pytest.raises(KernelBuildError, match="disk full"):
            found.build(tmp_path / "kernels.cpp", tmp_path / "kernels.so")


@pytest.mark.cpp
def test_the_key_text_names_compiler_flags_cpu_and_headers():
    text = toolchain.find_toolchain().describe()
    assert "-ffp-contract=off" in text and "-ffast-math" not in text
    assert "launch.h" in text and "compiler:" in text and "cpu:" in text


@pytest.mark.cpp
def test_the_linker_does_not_search_the_library_of_cxx(tmp_path):
    """Reading the header takes a quarter of the time of a build."""
    found = toolchain.find_toolchain()
    if "clang" in found.version:
        pytest.skip("Clang links what it always does")
    said = tmp_path / "said"
    noisy = tmp_path / "g++"
    noisy.write_text(f'#!/bin/sh\nexec {found.command} "$@" -Wl,--trace >{said}\n')
    noisy.chmod(0o755)
    (tmp_path / "kernels.cpp").write_text("int answer() { return 42; }\n")
    dataclasses.replace(found, command=str(noisy)).build(tmp_path / "kernels.cpp", tmp_path / "kernels.so")
    assert ".o" in said.read_text() and "stdc++" not in said.read_text()


@pytest.mark.cpp
def test_building_is_timed_as_its_own_phase(tmp_path):
    (tmp_path / "kernels.cpp").write_text("int answer() { return 42; }\n")
    seen = []
    stop = on_event(lambda event: seen.append((event.kind, event.name)))
    try:
        toolchain.find_toolchain().build(tmp_path / "kernels.cpp", tmp_path / "kernels.so")
    finally:
        stop()
    assert ("phase_end", "cc") in seen
