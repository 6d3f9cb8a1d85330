"""The distributed examples, shortened: they check their results and report the outcome in the exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import available

ROOT = Path(__file__).parent.parent.parent


@available
@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_ddp", "train_fsdp2"])
def test_two_ranks_learn(name):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, f"examples/{name}.py"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: 2 ranks" in done.stdout
