"""Finding the compiler, the flags, and the message without a compiler."""

import ctypes
import dataclasses
import os
import time
from pathlib import Path

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


def compiler(path, text):
    """A compiler that tells its version, and then runs `text`."""
    path.write_bytes(b'#!/bin/sh\n[ "$1" = --version ] && echo compiler 1.0 && exit 0\n' + text)
    path.chmod(0o755)
    return config.patch(cxx=str(path))


def build(folder):
    (folder / "kernels.cpp").write_text("int answer() { return 42; }\n")
    toolchain.find_toolchain().build(folder / "kernels.cpp", folder / "kernels.so")


@pytest.mark.cpp
def test_messages_in_any_encoding(tmp_path):
    real = toolchain.find_toolchain().command.encode()
    with compiler(tmp_path / "g++", b"printf '\\374bel\\n' >&2; exec " + real + b' "$@"'):
        build(tmp_path)
    assert (tmp_path / "kernels.so").stat().st_size > 0
    (tmp_path / "kernels.so").unlink()
    failing = compiler(tmp_path / "c++", b"printf 'error: \\374bel\\n' >&2; exit 1")
    with failing, pytest.raises(KernelBuildError, match="error: \ufffdbel"):
        build(tmp_path)


def runs(process):
    """Return whether `process`, a file /proc/*/stat, is of a process that neither ended nor waits to be reaped."""
    try:
        return process.read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_compiler_that_hangs_is_ended_with_its_children_and_not_asked_again(tmp_path):
    hangs = compiler(tmp_path / "g++", f"sleep 60 & echo $! > {tmp_path}/child; wait".encode())
    with hangs, config.patch(cxx_timeout=1):
        for _ in range(2):
            with pytest.raises(KernelBuildError, match="timed out"):
                build(tmp_path)
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    limit = time.monotonic() + 30  # the kernel ends a killed process when that process next runs
    while runs(child):
        assert time.monotonic() < limit, child.read_text()
        time.sleep(0.01)


def test_a_compiler_that_vanishes(tmp_path):
    with compiler(tmp_path / "g++", b"exit 0"):
        found = toolchain.find_toolchain()
        (tmp_path / "g++").unlink()
        with pytest.raises(KernelBuildError, match="No such file"):
            found.build(tmp_path / "kernels.cpp", tmp_path / "kernels.so")


@pytest.mark.cpp
@pytest.mark.parametrize("size", [0, 40, 1000, 5000])
def test_a_truncated_library_is_not_loaded(size, tmp_path):
    real = toolchain.find_toolchain().command
    text = f'{real} "$@" && truncate -s {size} {tmp_path}/kernels.so'
    with compiler(tmp_path / "g++", text.encode()), pytest.raises(KernelBuildError, match="no whole library"):
        build(tmp_path)


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


def parts_of(folder, kernels, cpus, monkeypatch, *, broken=None):
    """Builds a source with `kernels` functions, with the compiler's command lines in a file; returns these."""
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    functions = [
        f"#if IN_PART({k})\nEXPORT int f{k}() {{ return {k}{'!' * (k == broken)}; }}\n#endif\n" for k in range(kernels)
    ]
    (folder / "kernels.cpp").write_text('#include "launch.h"\n' + "".join(functions))
    real = toolchain.find_toolchain().command
    with compiler(folder / "g++", f'echo "$*" >> {folder}/said; exec {real} "$@"'.encode()):
        toolchain.find_toolchain().build(folder / "kernels.cpp", folder / "kernels.so")
    return [line for line in (folder / "said").read_text().splitlines() if "kernels.cpp" in line]


@pytest.mark.cpp
@pytest.mark.parametrize(
    "kernels, cpus, parts",
    [(0, 4, 1), (1, 4, 1), (3, 4, 1), (4, 4, 2), (9, 4, 4), (9, 1, 1), (9, None, 1), (40, 64, 8)],
)
def test_a_source_with_many_kernels_is_compiled_on_several_processors(kernels, cpus, parts, tmp_path, monkeypatch):
    said = parts_of(tmp_path, kernels, cpus, monkeypatch)
    assert len(said) == parts
    library = ctypes.CDLL(str(tmp_path / "kernels.so"))
    assert [getattr(library, f"f{k}")() for k in range(kernels)] == list(range(kernels))
    assert library.minidynamo_threading and library.minidynamo_tensors


@pytest.mark.cpp
@pytest.mark.parametrize("broken", range(4))
def test_an_error_in_any_part_is_reported(broken, tmp_path, monkeypatch):
    with pytest.raises(KernelBuildError, match=rf"kernels.cpp:{3 * broken + 3}:\d+: error"):
        parts_of(tmp_path, 4, 2, monkeypatch, broken=broken)


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
