"""Owns what tests of libraries' models get: imports that work offline, one thread, and libraries' warnings ignored."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from benchmarks.vision_operators import import_torchvision


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports torchvision, which the libraries import, and keeps them from downloading and logging.

    One thread: convolutions of torch allocate scratch memory for each, and peaks would depend on the machine.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import_torchvision()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
