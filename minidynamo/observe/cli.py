"""Owns the command line: `python -m minidynamo doctor | run SCRIPT | explain CODE | cache ls, why or clear`.

It shows the data of other files and empties the cache; no command here has an effect on compiled code.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import on_event
from minidynamo.errors import KernelBuildError, ToolchainMissing, nearest
from minidynamo.graph_cache import files
from minidynamo.graph_cache.key import differences
from minidynamo.observe.report import Report

# An installed package has the page next to the code, a checkout in docs/.
_PACKAGE = Path(__file__).parents[1]
ERROR_PAGES = (_PACKAGE / "errors.md", _PACKAGE.parent / "docs" / "errors.md")

CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")

Row = tuple[str, str, str]
OK, NOTE, BAD = "ok", "note", "missing"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. `arguments` default to those of the process."""
    chosen = parser().parse_args(arguments)
    try:
        status = run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader like `head` has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (Python flushes stdout at exit, and would raise again)
        return 0
    return status


def parser() -> argparse.ArgumentParser:
    """Returns the parser of commands and options."""
    parser = argparse.ArgumentParser(prog="minidynamo", description="A small, readable tracing compiler for PyTorch.")
    parser.add_argument(
        "--version", action="version", version=f"minidynamo {installed('minidynamo') or 'from a folder'}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="what an error code means and what to write instead")
    explain.add_argument(
        "code",
        metavar="CODE",
        help="for example MD201; MD2 lists the codes that begin with MD2, 'all' lists every code",
    )
    commands.add_parser("doctor", help="what minidynamo finds on this machine")
    script = commands.add_parser("run", help="run a script, and report on standard error what it compiled")
    script.add_argument("script", metavar="SCRIPT", help="the file, as `python SCRIPT` takes it")
    script.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the arguments of the script")
    cache = commands.add_parser("cache", help="the compiled graphs that are kept on disk")
    actions = cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("ls", help="the entries: key, size, age, uses, what they are")
    why = actions.add_parser("why", help="the lines in which two keys differ")
    why.add_argument("keys", nargs=2, metavar="KEY", help="the beginning of a key, as `cache ls` shows it")
    actions.add_parser("clear", help="remove all entries, kernels and texts")
    return parser


def run(chosen: argparse.Namespace) -> int:
    """Runs the chosen command; returns the exit status."""
    if chosen.command == "explain":
        return show_entry(chosen.code.upper())
    if chosen.command == "doctor":
        return show_machine()
    if chosen.command == "run":
        return run_script(chosen.script, chosen.arguments)
    if chosen.action == "why":
        return compare_entries(*chosen.keys)
    return list_cache() if chosen.action == "ls" else clear_cache()


def error_entries() -> dict[str, str]:
    """Returns the entries of docs/errors.md: code -> text with heading. Raises FileNotFoundError without the page."""
    page = next((path for path in ERROR_PAGES if path.exists()), None)
    if page is None:
        raise FileNotFoundError(f"the page of error codes is at none of: {', '.join(map(str, ERROR_PAGES))}")
    parts = re.split(r"^(?=## MD\d{3}\b)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    # A heading of the first level starts the next range of codes and belongs to no entry.
    texts = (re.split(r"^# ", part, maxsplit=1, flags=re.MULTILINE)[0].strip() for part in parts)
    return {text[3:8]: text for text in texts if text.startswith("## MD")}


def show_entry(code: str) -> int:
    """Prints the entry of an error code; for ALL or the beginning of codes (MD2), prints headings."""
    entries = error_entries()
    begins = [text for known, text in entries.items() if known.startswith("MD" if code == "ALL" else code)]
    if begins and code not in entries:
        print("\n".join(text.partition("\n")[0].removeprefix("## ") for text in begins))
        return 0
    if not begins:
        print(f"There is no code {code}.{nearest(code, entries)} `explain all` lists them.", file=sys.stderr)
        return 2
    print(entries[code].removeprefix("## "))
    return 0


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Runs a script as Python does and prints a report, also when the script raises; returns 2 without such a file."""
    if not os.path.isfile(path):
        print(f"There is no script {path}.", file=sys.stderr)
        return 2
    report = Report()
    stop = on_event(report)
    sys.argv = [path, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(path))
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        stop()
        sys.stdout.flush()
        print(f"\nminidynamo, of {path}: {report}", file=sys.stderr)
    return 0


def show_machine() -> int:
    """Prints what minidynamo finds on this machine; returns 1 if a requirement is missing."""
    # Imported here: only drawing needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("", "what", title="minidynamo doctor", title_justify="left")
    table.add_column("found", overflow="fold")
    rows = [row for check in CHECKS for row in check()]
    colours = {OK: "green", NOTE: "yellow", BAD: "red"}
    for state, what, found in rows:
        table.add_row(f"[{colours[state]}]{state}[/]", what, found)
    console = Console()
    console.print(table)
    return int(any(state == BAD for state, _, _ in rows))


def check_versions() -> Iterator[Row]:
    """Checks Python and the packages that minidynamo uses."""
    yield OK, "python", f"{platform.python_version()} on {platform.platform()}"
    for name, use in (
        ("minidynamo", "running from a folder"),
        ("torch", ""),
        ("triton", "no kernels for GPUs"),
        ("bytecode", ""),
        ("networkx", ""),
    ):
        version = installed(name)
        if version is not None:
            yield OK, name, version
        else:
            yield (NOTE if use else BAD), name, f"not installed{': ' * bool(use)}{use}"


def installed(package: str) -> str | None:
    """Returns the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_compiler() -> Iterator[Row]:
    """Checks the C++ compiler and the CPU that it compiles for."""
    try:
        toolchain = find_toolchain()
    except ToolchainMissing as error:
        yield BAD, "C++ compiler", f"{error.diagnostic.what}; CPU code runs with torch's own kernels"
        yield BAD, "", error.diagnostic.fix
        return
    except KernelBuildError as error:
        yield BAD, "C++ compiler", error.diagnostic.why
        yield BAD, "", error.diagnostic.fix
        return
    yield OK, "C++ compiler", f"{toolchain.command}: {toolchain.version}"
    features = [name for name in CPU_FEATURES if name in toolchain.cpu.split()]
    yield OK, "CPU features", ", ".join(features) or "none that matter here"


def check_devices() -> Iterator[Row]:
    """Checks threads, the OpenMP runtime of torch, GPUs."""
    yield OK, "CPU threads", str(config.threads or torch.get_num_threads())
    runtimes = loaded_openmp_runtimes()
    if len(runtimes) > 1:
        yield NOTE, "OpenMP", f"{len(runtimes)} runtimes are loaded and compete for the cores: {', '.join(runtimes)}"
    else:
        yield OK, "OpenMP", runtimes[0] if runtimes else "none loaded"
    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    yield (OK if count else NOTE), "GPUs", names or "none; Triton kernels can run under its interpreter"


def loaded_openmp_runtimes() -> list[str]:
    """Returns the paths of the OpenMP libraries in this process, if the system lists them."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return []
    return sorted(set(re.findall(r"\S*/lib(?:gomp|iomp5|omp)\b\S*", text)))


def check_folders() -> Iterator[Row]:
    """Checks whether the folder of generated code and kernels can be used."""
    folder = Path(artifacts.chosen_folder())
    problem = artifacts.problem_with(str(folder))
    if not problem and not os.access(folder, os.W_OK):
        problem = "this user may not write there"
    if problem:
        yield BAD, "cache folder", f"{folder} is not used: {problem}; every process compiles anew"
        return
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield OK, "cache folder", f"{folder} ({size / 2**20:.1f} MiB)"


def list_cache() -> int:
    """Prints the stored graphs, the most recently used first."""
    entries = files.entries()
    print(f"{'key':<33}  {'size':>9}  {'used':>10}  {'uses':>5}  what")
    for entry in entries:
        content = files.read(entry.name)
        description = content.get("description") if isinstance(content, dict) else None
        used = age(time.time() - entry.used)
        print(
            f"{entry.name:<33}  {entry.size / 1024:>5.0f} KiB  {used:>10}  {entry.hits:>5}  {description or 'damaged'}"
        )
    total = sum(entry.size for entry in entries)
    print(f"{len(entries)} graphs, {total / 2**20:.1f} MiB, in {files.folder()}")
    return 0


def age(seconds: float) -> str:
    """Returns `3 min ago`, in the largest unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def compare_entries(first: str, second: str) -> int:
    """Prints the lines in which the keys of two entries differ; returns 2 if an entry does not exist."""
    texts = []
    for prefix in (first, second):
        found = [entry.name for entry in files.entries() if entry.name.startswith(prefix)]
        content = files.read(found[0]) if len(found) == 1 else None
        if not isinstance(content, dict):
            many = f"{len(found)} entries have a key" if found else "There is no entry with a key"
            print(f"{many} that begins with {prefix}. `cache ls` lists them.", file=sys.stderr)
            return 2
        texts.append(str(content.get("key")))
    lines = differences(*texts)
    print("\n".join(lines) if lines else "The keys are the same.")
    return 0


def clear_cache() -> int:
    """Removes all files of the cache, and prints how much that was."""
    count, size = files.clear()
    print(f"Removed {count} files, {size / 2**20:.1f} MiB, from {artifacts.cache_dir()}")
    return 0


CHECKS: tuple[Callable[[], Iterator[Row]], ...] = (check_versions, check_compiler, check_devices, check_folders)
