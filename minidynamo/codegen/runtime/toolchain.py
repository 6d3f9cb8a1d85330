"""Owns the C++ compiler: its path, its flags, and the build of a source to a shared library.

The meaning of the source is unknown here, and nothing is kept on disk; `disk_cache` does that.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
from concurrent import futures
from pathlib import Path

from minidynamo.config import config
from minidynamo.core.events import phase
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, KernelBuildError, ToolchainMissing

CANDIDATES = ("c++", "g++", "clang++")

INCLUDE = Path(__file__).parent / "include"

# No -ffast-math and no contraction: arithmetic in a kernel must round exactly as torch's own kernels do.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-Wno-psabi",
)

# The two disabled passes turn conditions into values that several branches compute, and GCC does not vectorize such a
# loop: without the passes `log1p(exp(x))` takes a fifteenth of the time. Clang has other passes, and rejects the names.
GCC_FLAGS = ("-fno-tree-pre", "-fno-thread-jumps")

LINK_FLAGS = ("-shared",)

# Kernels use nothing of the C++ library, and searching it took GCC's linker a quarter of the build time.
GCC_LINK_FLAGS = ("-nodefaultlibs", "-lm", "-lc", "-lgcc")

# A part of a source has at least KERNELS_PER_PART kernels: starting the compiler takes as long as compiling one. More
# processes than MOST_PARTS would need too much memory.
KERNELS_PER_PART = 2
MOST_PARTS = 8

# The commands that ran into the time limit; another graph would only wait as long again.
_hanging: set[str] = set()


@record(frozen=True)
class Toolchain:
    """An installed C++ compiler."""

    #: The path of the compiler.
    command: str
    #: The first line of the output of `--version`.
    version: str
    #: The flags for compiling.
    flags: tuple[str, ...]
    #: The flags for linking.
    link_flags: tuple[str, ...]
    #: The processor's model and instruction sets, which decide the meaning of -march=native.
    cpu: str

    def describe(self) -> str:
        """Returns everything besides the source that decides the built code, as readable text (part of the cache
        key)."""
        headers = "\n".join(
            f"// {path.name}\n{path.read_text(encoding='utf-8')}" for path in sorted(INCLUDE.glob("*.h"))
        )
        flags = " ".join((*self.flags, *self.link_flags))
        lines = (f"compiler: {self.version}", f"flags: {flags}", f"cpu: {self.cpu}", headers)
        return "\n".join(lines)

    def build(self, source: Path, output: Path) -> None:
        """Compiles the file `source` into the shared library `output`.

        A source with several kernels, each in a part of its own (see launch.h), is compiled on several processors.
        Raises KernelBuildError (MD502) with the command and the first lines of the compiler's messages.
        """
        parts = max(1, min(_count_kernels(source) // KERNELS_PER_PART, os.cpu_count() or 1, MOST_PARTS))
        compiling = [self.command, f"-I{INCLUDE}", str(source), *self.flags]
        with phase("cc"):
            if parts == 1:
                # A library resolves only symbols of files before it on the command line.
                _checked([*compiling, "-o", str(output), *self.link_flags], source, output)
                return
            objects = [output.with_name(f"part{part}.o") for part in range(parts)]
            with futures.ThreadPoolExecutor(max_workers=parts) as pool:
                building = [
                    pool.submit(_checked, [*compiling, "-c", *_part(part, parts), "-o", str(path)], source, path)
                    for part, path in enumerate(objects)
                ]
            for built in building:
                built.result()
            _checked([self.command, *map(str, objects), "-o", str(output), *self.link_flags], source, output)


def _count_kernels(source: Path) -> int:
    """Returns the number of kernels that have a part of their own; 0 if another process has removed the file."""
    try:
        return source.read_text(encoding="utf-8").count("#if IN_PART(")
    except OSError:
        return 0


def _part(part: int, parts: int) -> tuple[str, str]:
    return f"-DPARTS={parts}", f"-DPART={part}"


def _checked(command: list[str], source: Path, output: Path) -> None:
    """Runs a compiler, which writes the file `output`.

    Raises KernelBuildError (MD502) if it fails, or if the file is not whole.
    """
    try:
        done = _run(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelBuildError(_build_failure(command, source, str(error))) from error
    if done.returncode != 0 or not _is_whole(output):
        messages = done.stderr.strip() or f"exit status {done.returncode}, no message, no whole library"
        cause = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        raise KernelBuildError(_build_failure(command, source, messages)) from cause


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a compiler, and ends it with all its children after `config.cxx_timeout` seconds.

    Raises OSError if the compiler does not start, TimeoutExpired if it hangs, or has hung before.
    """
    if command[0] in _hanging:
        raise subprocess.TimeoutExpired(command[0], config.cxx_timeout)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",  # messages may be in any encoding
        start_new_session=True,
    ) as process:
        try:
            output, messages = process.communicate(timeout=config.cxx_timeout)
        except subprocess.TimeoutExpired:
            _hanging.add(command[0])
            raise
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, messages)


def _is_whole(library: Path) -> bool:
    """Returns whether a file ends where its ELF header says; the loader may crash on a truncated library.

    The table of sections is the last part of a library or object. Files of other formats are left to the loader.
    """
    try:
        size = library.stat().st_size
        with library.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head[:5] != b"\x7fELF\x02":
        return size > 0
    if len(head) < 64:
        return False
    (start,), (length, count) = struct.unpack_from("Q", head, 40), struct.unpack_from("HH", head, 58)
    return bool(start + length * count <= size)


def find_toolchain() -> Toolchain:
    """Returns the compiler named by `config.cxx`, or the first of c++, g++ and clang++ on the PATH that runs.

    Raises ToolchainMissing (MD501) if there is none, KernelBuildError (MD502) if none answers `--version`.
    """
    broken = None
    for name in (config.cxx,) if config.cxx else CANDIDATES:
        path = shutil.which(name)
        if path is not None:
            try:
                return _probe(path)
            except KernelBuildError as error:
                broken = broken or error
    if broken is not None:
        raise broken
    looked_for = config.cxx or ", ".join(CANDIDATES)
    raise ToolchainMissing(
        Diagnostic(
            "MD501",
            "no C++ compiler was found",
            why=f"CPU kernels are compiled on this machine; looked for: {looked_for}.",
            fix="Install one (apt install g++) or name it: MINIDYNAMO_CXX=/path/to/g++",
        )
    )


@functools.cache
def _probe(path: str) -> Toolchain:
    try:
        done = _run([path, "--version"])
        version = done.stdout.partition("\n")[0].strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        version, reason = "", str(error)
    else:
        reason = done.stderr.strip()
    if not version:
        raise KernelBuildError(
            Diagnostic(
                "MD502",
                f"a kernel did not compile: the C++ compiler {path} does not run",
                why=f"`{path} --version` failed: {_excerpt(reason, 2) or 'it printed nothing'}",
                fix="Install a working one (apt install g++), name it in MINIDYNAMO_CXX, or pass on_error='eager'.",
            )
        )
    cpu = _cpu()
    own, own_link = ((), ()) if "clang" in version else (GCC_FLAGS, GCC_LINK_FLAGS)
    return Toolchain(path, version, FLAGS + own + _machine_flags(cpu), LINK_FLAGS + own_link, cpu)


def _cpu() -> str:
    """Returns the processor's model and instruction sets, which -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    # Arm kernels call the instruction sets "Features".
    fields = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{platform.machine()} " + " / ".join(dict.fromkeys(fields))


def _machine_flags(cpu: str) -> tuple[str, ...]:
    native = "-march=native" if platform.machine() in ("x86_64", "AMD64", "i686") else "-mcpu=native"
    wide = ("-mprefer-vector-width=512",) if "avx512f" in cpu.split() else ()
    return (native, *wide)


def _build_failure(command: list[str], source: Path, messages: str) -> Diagnostic:
    return Diagnostic(
        "MD502",
        "a kernel did not compile",
        why=f"{' '.join(command)}\n{_excerpt(messages, 5)}",
        fix=f"The source is {source}; minidynamo.compile(..., on_error='eager') runs without it.",
    )


def _excerpt(text: str, count: int) -> str:
    """Returns the first `count` lines that name an error, else the first lines."""
    lines = text.splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    return "\n".join((errors or lines)[:count])
