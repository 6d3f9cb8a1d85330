"""Owns the common parts of all tests: options, marks, the golden fixture, a cache folder, and machine code of Triton
kernels.

Does not compare results with eager; `minidynamo.testing` does.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec
from minidynamo.config import config
from minidynamo.core.events import Event, forget_notices, on_event
from minidynamo.observe.comparison import seed_generators
from tests.codegen.offline import TARGETS, Target, check_offline
from tests.thinning import in_other_shares, is_thinned, left_out

GOLDEN = Path(__file__).parent / "golden"

MOST_WARPS = 16  # on every target: 1024 threads of AMD's


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--share", metavar="K/N", help="leave tests below the bytecode to N - 1 other interpreters")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden and tests/models/table.json")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freezes the million objects of collection, which live until the end: garbage collection over these objects took a
    third of the collection time, and most of the time of each test that calls `gc.collect()`. Almost all objects that
    torch, SymPy and minidynamo keep of each test live as long, and traversing these at Python's default rate took a
    sixteenth of a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def freeze_survivors() -> Iterator[None]:
    """Freezes after each file what torch, SymPy and minidynamo keep for good, after collecting the garbage. Later tests
    that collect garbage, or make many objects, would traverse all of it again and again."""
    yield
    gc.collect()
    gc.freeze()


@atexit.register
def thaw() -> None:
    """Unfreezes objects at exit, since C++ libraries report leaks otherwise; later than pytest's last garbage
    collection."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {
        "slow": "" if config.getoption("--slow") else "slow; runs with --slow",
        "cpp": "" if has_cxx() else "no C++ compiler here",
        "gpu": "" if torch.cuda.is_available() else "no GPU here",
    }
    for item in items:
        for mark, reason in reasons.items():
            if reason and mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
    out = left_out(items) if is_thinned(config) else []
    out += in_other_shares(items, share) if (share := config.getoption("--share")) else []
    config.hook.pytest_deselected(items=out)
    left = {id(item) for item in out}
    items[:] = [item for item in items if id(item) not in left]


def has_cxx() -> bool:
    """True if the machine has a compiler under a name that minidynamo looks for."""
    return any(shutil.which(name) for name in ([config.cxx] if config.cxx else ["c++", "g++", "clang++"]))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directs generated code and kernels of this run to a temporary folder, also in child processes.

    The workers of a run share the folder, so code that several tests compile is built once; runs with the folder
    TEST_CACHE share the folder, too. Stored graphs would hide compiles from a test; tests of the graph cache enable the
    stored graphs.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "minidynamo_cache"
    folder = Path(os.environ.get("TEST_CACHE", folder))
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, config.patch(cache_dir=str(folder), graph_cache=False):
        patch.setenv("MINIDYNAMO_CACHE_DIR", str(folder))
        patch.setenv("MINIDYNAMO_GRAPH_CACHE", "0")
        yield folder


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seeds random inputs, so that they do not depend on earlier tests."""
    seed_generators(0)


@pytest.fixture(autouse=True)
def fresh_notices() -> None:
    """Resets the reported events, so that the notices of a test do not depend on earlier tests."""
    forget_notices()


HIDDEN = ("MD299", "MD502", "MD503", "MD510", "MD523")
"""The codes of what is minidynamo's or a backend's fault, and of which a second run eagerly would hide the effect."""


@pytest.fixture(autouse=True)
def nothing_hidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test where capture, generated code or a backend has failed and the frame ran eagerly instead, even with a
    right result. Tests that provoke such a failure are marked `provokes_failures`."""
    if request.node.get_closest_marker("provokes_failures"):
        yield
        return
    found: list[str] = []

    def note(event: Event) -> None:
        diagnostic = event.data.get("diagnostic")
        if event.kind in ("fallback", "notice") and diagnostic.code in HIDDEN:
            found.append(diagnostic.render())

    stop = on_event(note)
    yield
    stop()
    assert not found, "\n".join(["a failure was hidden by a run eagerly:", *dict.fromkeys(found)])


@pytest.fixture(autouse=True)
def machine_code(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles each Triton kernel of a test for a GPU after the test, each text once; no GPU is needed.

    The kernels of a run are distributed over the targets by their texts, since a kernel that compiles for one target
    nearly always compiles for all. The kernels are compiled for the most warps: the tile part of a thread is unrolled,
    and a short part takes a quarter of the time. With --slow each kernel is compiled for all targets, with its launch
    parameters.
    """
    printed: list[tuple[str, LaunchSpec]] = []
    original = triton_launch.launchers

    def recording(source: str, specs: Sequence[LaunchSpec], **how: Any) -> dict[str, Callable[..., None]]:
        printed.extend((source, spec) for spec in specs)
        return original(source, specs, **how)

    monkeypatch.setattr(triton_launch, "launchers", recording)
    yield
    for source, spec in printed:
        targets: Sequence[Target] = TARGETS
        if not request.config.getoption("--slow"):
            targets = [TARGETS[zlib.crc32(f"{source}{spec.name}".encode()) % len(TARGETS)]]
            spec = dataclasses.replace(spec, warps=MOST_WARPS)
        for target in targets:
            assert check_offline(source, spec, target) == {"cuda": "cubin", "hip": "hsaco"}[target[0]]


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Records the log messages of the test.

    pytest's own `caplog` listens to all loggers in every test. Then torch sees listeners, and logs each symbol with its
    stack: a tenth of a run.
    """
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    known = logging.root.manager.loggerDict.values()
    apart = [logger for logger in known if isinstance(logger, logging.Logger) and not logger.propagate]
    loggers = [logging.root, *apart]
    for logger in loggers:
        logger.addHandler(handler)
    yield records
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture
def md_reset() -> Iterator[None]:
    """Forgets every compiled version and reported notice, before and after the test."""
    # Imported here, as below: tests of the lower layers run without the upper layers.
    reset = importlib.import_module("minidynamo").reset
    reset()
    yield
    reset()


@pytest.fixture
def md_counter() -> Any:
    """Returns a fresh `minidynamo.testing.CompileCounter`."""
    return importlib.import_module("minidynamo.testing").CompileCounter()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Returns `golden(text, path)`, which compares `text` with tests/golden/`path`; --update-golden rewrites the file
    instead."""

    def check(text: str, path: str) -> None:
        file = GOLDEN / path
        text = text if text.endswith("\n") else text + "\n"
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file} is missing; run pytest with --update-golden to write it, then read it"
        expected = file.read_text(encoding="utf-8")
        assert text == expected, f"differs from {file}; if the change is meant, run pytest with --update-golden"

    return check
