from __future__ import annotations

import pytest
import torch

from benchmarks import memory
from benchmarks.memory import measured, peak_bytes, training_step
from benchmarks.memory_models import MODELS, POINTWISE


def test_every_allocation_counts_and_releases_count_too():
    def one_at_a_time():
        for _ in range(3):
            torch.empty(1000)

    def all_at_once():
        return [torch.empty(1000) for _ in range(3)]

    assert peak_bytes(lambda: torch.empty(1000)) == 4000
    assert peak_bytes(one_at_a_time) == 4000
    assert peak_bytes(all_at_once) == 12000


def test_release_of_what_was_there_before_is_no_credit():
    held = [torch.empty(1000)]

    def swap():
        held.clear()
        held.append(torch.empty(500))

    assert peak_bytes(swap) == 2000


def test_each_system_is_measured_and_the_peak_predicted(monkeypatch):
    monkeypatch.delitem(memory.SYSTEMS, "torch.compile")
    samples, predicted = measured(lambda: torch.nn.Linear(64, 8), (256, 64), training_step)
    assert list(samples) == ["eager", "minidynamo"] and all(value > 0 for (value,) in samples.values())
    assert predicted > 0


@pytest.mark.parametrize("name", [*MODELS, *POINTWISE])
def test_the_models_run(name):
    make, shape = (MODELS | POINTWISE)[name]
    size = (1, 3, 32, 32) if len(shape) == 4 else (2, *shape[1:])
    assert make().eval()(torch.rand(size)).shape[0] == size[0]
