"""Owns the common parts of the tests of libraries' models: imports that work offline, one thread, and libraries'
warnings ignored."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from benchmarks.vision_operators import import_torchvision


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports torchvision, which the libraries import, and disables downloads and logging.

    Uses a single thread: torch's convolutions allocate scratch memory per thread, and peaks would depend on the
    machine.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import_torchvision()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
