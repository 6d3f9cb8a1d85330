from __future__ import annotations

import torch

from benchmarks.memory import peak_bytes


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
