"""Programs that run on two processes, which communicate through gloo. A module's programs share the two processes."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

SECONDS = 240
"""Time limit of all programs of a module, at most."""

available = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Ranks:
    """The programs of one module: plain functions of the rank that assert their results."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.programs: dict[str, Callable[[int], Any]] = {}
        #: the names of the programs that run with --slow only
        self.slow: set[str] = set()

    def __call__(self, program: Callable[[int], Any], *, slow: bool = False) -> Callable[[int], Any]:
        self.programs[program.__name__] = program
        self.slow |= {program.__name__} if slow else set()
        return program

    def chosen(self, slow: bool) -> dict[str, Callable[[int], Any]]:
        """Returns the slow programs, or the others."""
        return {name: program for name, program in self.programs.items() if (name in self.slow) is slow}

    def test(self) -> Callable[..., None]:
        """Returns a test with one case per program."""

        cases = [pytest.param(n, marks=[pytest.mark.slow] * (n in self.slow)) for n in self.programs]

        @available
        @pytest.mark.parametrize("name", cases)
        def test(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
            folder = tmp_path_factory.getbasetemp()
            folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
            outcomes = self._outcomes(folder, name in self.slow)
            for rank, outcome in enumerate(outcomes):
                text = outcome.get(name, "did not run: an earlier program failed or took too long")
                assert text == "", f"rank {rank}: {text}"

        return test

    def _outcomes(self, folder: Path, slow: bool) -> list[dict[str, str]]:
        """Returns the outcome of each program on each rank; pytest's processes run the programs once."""
        stored = folder / f"{self.module}{'-slow' * slow}.json"
        with open(folder / f"{self.module}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stored.exists():
                stored.write_text(json.dumps(self._run(slow)))
        outcomes: list[dict[str, str]] = json.loads(stored.read_text())
        return outcomes

    def _run(self, slow: bool) -> list[dict[str, str]]:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{rank}.json" for rank in (0, 1)]
            text = "import sys; from tests.ranks import work; work(*sys.argv[1:])"
            env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            ranks = [
                subprocess.Popen([sys.executable, "-c", text, self.module, str(rank), folder, "slow" * slow], env=env)
                for rank in (0, 1)
            ]
            end = time.monotonic() + SECONDS
            for process in ranks:
                try:
                    process.wait(max(1.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
            return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def work(module: str, rank: str, folder: str, slow: str) -> None:
    """Runs the programs of a module as one of two ranks, up to the first failure: the slow ones, or the others."""
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.FileStore(f"{folder}/store", 2),
        rank=int(rank),
        world_size=2,
        timeout=timedelta(seconds=30),
    )
    torch.set_num_threads(1)
    outcomes: dict[str, str] = {}
    for name, program in importlib.import_module(module).programs.chosen(slow == "slow").items():
        torch.manual_seed(0)
        try:
            program(int(rank))
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
        part = Path(folder) / f"{rank}.part"
        part.write_text(json.dumps(outcomes))
        part.rename(Path(folder) / f"{rank}.json")
        if outcomes[name]:
            break
    os._exit(0)  # the destructor of a process group waits for the other rank
