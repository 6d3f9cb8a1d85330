"""Owns the C++ compiler: where it is, which flags it gets, and how one source becomes one shared library.

It does not know what the source computes and keeps nothing on disk; `disk_cache` does that.
"""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from minidynamo.config import config
from minidynamo.core.events import phase
from minidynamo.errors import Diagnostic, KernelBuildError, ToolchainMissing

CANDIDATES = ("c++", "g++", "clang++")

INCLUDE = Path(__file__).parent / "include"

# No -ffast-math and no contraction: arithmetic in a kernel must round exactly as torch's own kernels do.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
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

# These two passes make of conditions values that run in by several branches, and GCC turns no such loop into vectors:
# `log1p(exp(x))` takes a fifteenth of the time without them. Clang has other passes, and refuses the names.
# Nothing of the C++ library is used, and searching it took GCC's linker a quarter of the time of a build.
GCC_FLAGS = ("-fno-tree-pre", "-fno-thread-jumps", "-nodefaultlibs", "-lm", "-lc", "-lgcc")

BUILD_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler that was found. `command` is its path, `version` the first line it prints about itself."""

    command: str
    version: str
    flags: tuple[str, ...]
    cpu: str

    def describe(self) -> str:
        """Everything besides the source that decides what comes out, as readable text (part of the cache key)."""
        headers = "\n".join(f"// {path.name}\n{path.read_text()}" for path in sorted(INCLUDE.glob("*.h")))
        lines = (f"compiler: {self.version}", f"flags: {' '.join(self.flags)}", f"cpu: {self.cpu}", headers)
        return "\n".join(lines)

    def build(self, source: Path, output: Path) -> None:
        """Compile the file `source` into the shared library `output`.

        Raises KernelBuildError (MD502), with the command and the first lines of what the compiler said.
        """
        # Libraries are searched for what stands in front of them.
        command = [self.command, f"-I{INCLUDE}", str(source), "-o", str(output), *self.flags]
        with phase("cc"):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise KernelBuildError(_build_failure(command, source, str(error))) from error
        if done.returncode != 0 or not output.exists():
            said = done.stderr.strip() or f"exit status {done.returncode}, no message"
            cause = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
            raise KernelBuildError(_build_failure(command, source, said)) from cause


def find_toolchain() -> Toolchain:
    """The compiler named by `config.cxx`, or the first of c++, g++ and clang++ on the PATH that runs.

    Raises ToolchainMissing (MD501) when there is none, KernelBuildError (MD502) when none answers `--version`.
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
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
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
                fix="Install a working one (apt install g++), name it in MINIDYNAMO_CXX, or say on_error='eager'.",
            )
        )
    cpu = _cpu()
    own = () if "clang" in version else GCC_FLAGS
    return Toolchain(path, version, FLAGS + own + _machine_flags(cpu), cpu)


def _cpu() -> str:
    """The processor's model and instruction sets, as -march=native sees them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    # "Features" is what Arm kernels call it.
    fields = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{platform.machine()} " + " / ".join(dict.fromkeys(fields))


def _machine_flags(cpu: str) -> tuple[str, ...]:
    native = "-march=native" if platform.machine() in ("x86_64", "AMD64", "i686") else "-mcpu=native"
    wide = ("-mprefer-vector-width=512",) if "avx512f" in cpu.split() else ()
    return (native, *wide)


def _build_failure(command: list[str], source: Path, said: str) -> Diagnostic:
    return Diagnostic(
        "MD502",
        "a kernel did not compile",
        why=f"{' '.join(command)}\n{_excerpt(said, 5)}",
        fix=f"The source is {source}; minidynamo.compile(..., on_error='eager') runs without it.",
    )


def _excerpt(text: str, count: int) -> str:
    """The first `count` lines that name an error, else the first lines."""
    lines = text.splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    return "\n".join((errors or lines)[:count])
