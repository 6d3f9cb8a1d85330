"""The demo itself, shortened: it checks its own results and reports the outcome in its exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.models import ConvNet, Transformer

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("make", [ConvNet, Transformer])
def test_models_take_images_and_give_scores(make):
    assert make()(torch.rand(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.slow
def test_the_demo_runs_and_agrees_with_eager():
    done = subprocess.run(
        [sys.executable, "examples/train_digits.py"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 4
    assert "Generated code: " in done.stdout
    assert done.stderr == ""
