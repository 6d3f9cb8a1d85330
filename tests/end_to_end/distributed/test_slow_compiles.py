"""FS2-8 with the times of the contract."""

from __future__ import annotations

import pytest

from tests.end_to_end.distributed.test_fully_shard import train_with_a_slow_rank
from tests.ranks import Ranks

programs = Ranks(__name__)


@programs
def FS2_8_a_rank_that_compiles_20_seconds_longer(rank):
    train_with_a_slow_rank(rank, 20)


test_on_two_ranks = pytest.mark.slow(programs.test())
