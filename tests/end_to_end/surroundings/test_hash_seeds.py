"""Decisions depend on no hash seed: a process with a different seed decides the same."""

import json
import os
import subprocess
import sys

from tests.autograd.partition.test_minimum_cut import description
from tests.graph_cache.test_key import text

PROCESS = """
import json, torch
from tests.autograd.partition.test_minimum_cut import description
from tests.graph_cache.test_key import text
torch.rand(3)
print(json.dumps([description(), text()]))
"""


def test_partitions_and_keys_are_the_same_in_another_process(tmp_path):
    """Compares processes with different hash seeds, ranks and folders."""
    environment = {**os.environ, "PYTHONHASHSEED": "1", "RANK": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    partition, key = json.loads(done.stdout)
    assert partition == description()
    assert key.partition("environment:")[0] == text().partition("environment:")[0]
