"""Measures the import and the first call of a small function in a fresh process, in seconds of the process's CPU time.

`cold_start.py` starts the processes. Run as `python -m benchmarks.first_call SYSTEM`, the module is the fresh process;
torch is imported before the clock starts.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import torch


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 2


def seconds(system: str) -> tuple[float, float]:
    """Returns the seconds of the import of the compiler, and of the first call."""
    x = torch.ones(8)
    function(x)
    start = time.process_time()
    compiler: Any = torch if system == "torch.compile" else importlib.import_module("minidynamo")
    imported = time.process_time()
    compiler.compile(function)(x)
    return imported - start, time.process_time() - imported


if __name__ == "__main__":
    print(*seconds(sys.argv[1]))
