"""Trains a small transformer on handwritten digits with `fully_shard`, each block compiled with minidynamo.

Run: torchrun --nproc-per-node 2 examples/train_fsdp2.py [--epochs N]

Each rank holds a part of each parameter; FSDP gathers the parameters of a block before its compiled forward and its
backward. Exit status 1 when the model does not learn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parent.parent))

import minidynamo
from examples.models import Transformer
from examples.models.transformer import Layer
from examples.train_ddp import accuracy, report, start, train
from examples.train_digits import read_digits


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    epochs = parser.parse_args().epochs
    device, digits = start(), read_digits()
    torch.manual_seed(0)
    model = Transformer().to(device)
    for block in [part for part in model.modules() if isinstance(part, Layer)]:
        minidynamo.compile(block, fullgraph=True)  # one graph per block; FSDP's hooks run around it
        fully_shard(block)
    fully_shard(model)
    train(model, digits, epochs, device)
    status = report(accuracy(model, digits, device), 0.0)
    distributed.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
