"""Trains two small models on handwritten digits, eagerly and with minidynamo, and shows both side by side.

The data are the 1,797 images of 8x8 pixels that scikit-learn ships. Exit status 1 when the compiled losses leave
eager's or when a model does not learn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

import minidynamo
from examples.models import ConvNet, Transformer
from minidynamo.core.artifacts import code_dir
from minidynamo.core.stats import Stats

BATCH = 64
COMPARED_STEPS = 20
LOSS_TOLERANCE = 1e-4
WANTED_ACCURACY = 0.95
PHASES = {"capture": "capture", "autograd": "autograd", "codegen": "codegen", "cc": "C++ compiler"}


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) from 0 to 1 and their classes (n), split once."""

    train_images: Tensor
    train_classes: Tensor
    test_images: Tensor
    test_classes: Tensor


@dataclass
class Run:
    """The outcome of one training run."""

    losses: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    stats: Stats = field(default_factory=Stats)

    def epoch_losses(self, steps: int) -> list[float]:
        """Returns the mean loss of each epoch of `steps` steps."""
        return [statistics.fmean(self.losses[i : i + steps]) for i in range(0, len(self.losses), steps)]


def read_digits() -> Digits:
    """Loads and splits the data, the same way every time."""
    images, classes = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images, classes, test_size=0.2, random_state=0, stratify=classes
    )

    def as_images(rows: object) -> Tensor:
        return torch.tensor(rows, dtype=torch.float32).view(-1, 1, 8, 8) / 16

    return Digits(as_images(train_x), torch.tensor(train_y), as_images(test_x), torch.tensor(test_y))


def train(model: nn.Module, digits: Digits, epochs: int, run: Run) -> None:
    """Trains on shuffled batches of one size and measures the accuracy on the test images."""
    steps = len(digits.train_images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * steps)
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(digits.train_images), generator=shuffle)
        for batch in order.split(BATCH)[:steps]:
            start = time.perf_counter()
            loss = functional.cross_entropy(model(digits.train_images[batch]), digits.train_classes[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            run.losses.append(loss.item())
            run.step_ms.append((time.perf_counter() - start) * 1e3)
    model.eval()
    with torch.no_grad():
        guessed = model(digits.test_images).argmax(dim=1)
    run.accuracy = (guessed == digits.test_classes).float().mean().item()


def run_once(make: Callable[[], nn.Module], digits: Digits, epochs: int, seed: int, backend: str | None) -> Run:
    """Trains a new model under `seed`; compiled with `backend`, or eagerly if `backend` is None."""
    torch.manual_seed(seed)
    model = make()
    run = Run()
    if backend is not None:
        model = minidynamo.compile(model, backend=backend)
    train(model, digits, epochs, run)
    if backend is not None:
        run.stats = minidynamo.stats(model)
    return run


def show(console: Console, title: str, eager: Run, compiled: Run, steps: int) -> None:
    """Prints both runs as one table."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "eager", "minidynamo"):
        table.add_column(heading, justify="left" if not heading else "right")
    epochs = list(zip(eager.epoch_losses(steps), compiled.epoch_losses(steps)))
    for number, (left, right) in enumerate(epochs, 1):
        table.add_row(f"loss, epoch {number}", f"{left:.6f}", f"{right:.6f}")
    table.add_section()
    table.add_row("test accuracy", f"{eager.accuracy:.1%}", f"{compiled.accuracy:.1%}")
    table.add_row("ms per step (median)", *(f"{statistics.median(run.step_ms):.2f}" for run in (eager, compiled)))
    table.add_row("first step (ms)", *(f"{run.step_ms[0]:.0f}" for run in (eager, compiled)))
    table.add_section()
    table.add_row("graphs", "", str(compiled.stats.graphs))
    table.add_row("graph breaks", "", str(compiled.stats.graph_breaks))
    table.add_row("recompiles", "", str(compiled.stats.recompiles))
    for phase, label in PHASES.items():
        table.add_row(f"compile seconds: {label}", "", f"{compiled.stats.seconds_by_phase.get(phase, 0):.2f}")
    console.print(table)


def check(console: Console, eager: Run, compiled: Run) -> bool:
    """Prints whether the runs agree and learned."""
    pairs = list(zip(eager.losses, compiled.losses))[:COMPARED_STEPS]
    difference = max(abs(left - right) / abs(left) for left, right in pairs)
    equal = difference <= LOSS_TOLERANCE
    learned = min(eager.accuracy, compiled.accuracy) >= WANTED_ACCURACY
    console.print(
        f"{'ok' if equal else 'FAILED'}: relative difference of the first {len(pairs)} losses at most {difference:.1e} "
        f"(limit {LOSS_TOLERANCE:.0e})",
        soft_wrap=True,
    )
    console.print(f"{'ok' if learned else 'FAILED'}: test accuracy of at least {WANTED_ACCURACY:.0%} in both runs")
    console.print()
    return equal and learned


def main() -> int:
    """Runs the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--backend", default="native", help="backend of the compiled runs")
    parser.add_argument(
        "--epochs", type=int, default=8, help="epochs of the conv net; the transformer takes three times as many"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    console = Console()
    digits = read_digits()
    steps = len(digits.train_images) // BATCH
    good = True
    for title, make, epochs in (
        ("Conv net", ConvNet, options.epochs),
        ("Transformer, 2 layers", Transformer, 3 * options.epochs),
    ):
        eager = run_once(make, digits, epochs, options.seed, None)
        compiled = run_once(make, digits, epochs, options.seed, options.backend)
        show(console, f"{title}: {epochs} epochs of {steps} steps", eager, compiled, steps)
        good &= check(console, eager, compiled)
    console.print(f"Generated code: {code_dir()}", soft_wrap=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
