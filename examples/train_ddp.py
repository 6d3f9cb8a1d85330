"""Trains a small transformer on handwritten digits with DistributedDataParallel, compiled with minidynamo.

Run: torchrun --nproc-per-node 2 examples/train_ddp.py [--epochs N]

Each rank trains on its part of every batch. On GPUs the ranks communicate through NCCL, else through gloo. Exit status
1 when the model does not learn, or when the parameters of the ranks differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent.parent))

import minidynamo
from examples.models import Transformer
from examples.train_digits import Digits, read_digits

BATCH = 64
WANTED_ACCURACY = 0.85


def start() -> torch.device:
    """Joins the process group of torchrun; returns the device of this rank."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", device_id=device)
        return device
    distributed.init_process_group("gloo")
    return torch.device("cpu")


def train(model: nn.Module, digits: Digits, epochs: int, device: torch.device) -> None:
    """Trains `model`; rank r of n gets rows r, r + n, ... of each batch."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    steps = len(digits.train_images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * steps)
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(digits.train_images), generator=shuffle)
        for batch in order.split(BATCH)[:steps]:
            rows = batch[rank::ranks]
            images, classes = digits.train_images[rows].to(device), digits.train_classes[rows].to(device)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), classes).backward()
            optimizer.step()
            schedule.step()


def accuracy(model: nn.Module, digits: Digits, device: torch.device) -> float:
    """Returns the share of test images with the right class."""
    model.eval()
    with torch.no_grad():
        guessed = model(digits.test_images.to(device)).argmax(dim=1).cpu()
    share: float = (guessed == digits.test_classes).float().mean().item()
    return share


def spread(parameters: list[Tensor]) -> float:
    """Returns the greatest difference between a parameter of this rank and of rank 0."""
    differences = []
    for parameter in parameters:
        first = parameter.detach().clone()
        distributed.broadcast(first, src=0)
        differences.append((first - parameter).abs().max().item())
    return max(differences)


def report(reached: float, differs: float) -> int:
    """Prints the outcome on rank 0; returns the exit status."""
    is_right = reached >= WANTED_ACCURACY and differs == 0
    if distributed.get_rank() == 0:
        ranks, verdict = distributed.get_world_size(), "ok" if is_right else "WRONG"
        print(f"{verdict}: {ranks} ranks, accuracy {reached:.3f}, greatest difference between ranks {differs}")
    return 0 if is_right else 1


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    epochs = parser.parse_args().epochs
    device, digits = start(), read_digits()
    torch.manual_seed(0)
    model = minidynamo.compile(Transformer().to(device))
    wrapped = DistributedDataParallel(model)
    train(wrapped, digits, epochs, device)
    status = report(accuracy(model, digits, device), spread(list(model.parameters())))
    distributed.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
