"""Models whose backward is more than the backward of one compiled graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import minidynamo


class Square(torch.autograd.Function):
    """Saves a tensor and a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Returns the square."""
        ctx.save_for_backward(x)
        ctx.factor = 2
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the gradient of `x`."""
        (x,) = ctx.saved_tensors
        result: torch.Tensor = gradient * ctx.factor * x
        return result


class Block(nn.Module):
    """A transformer block with a checkpoint around its second half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.up, self.down = (nn.Linear(width, width) for _ in range(5))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2), -1)
        x = x + weights @ self.value(x)
        second: torch.Tensor = checkpoint(self.second_half, x, use_reentrant=False)
        return x + second

    def second_half(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the result of the half in the checkpoint."""
        result: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


def mlp(width: int) -> nn.Module:
    """Returns two layers with activations."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.Tanh())


class WithFunction(nn.Module):
    """Two layers with a custom Function between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares: torch.Tensor = Square.apply(self.first(x))  # type: ignore[no-untyped-call]
        result: torch.Tensor = self.second(squares.sin())
        return result


class TwoRegions(nn.Module):
    """Two functions with Python between them; `compiled` compiles both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.inside, self.outside = self.before, self.after

    def compiled(self, backend: str) -> TwoRegions:
        """Compiles the two functions."""
        self.inside = minidynamo.compile(self.before, backend=backend)
        self.outside = minidynamo.compile(self.after, backend=backend)
        return self

    def before(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the result of the first region."""
        return torch.relu(self.first(x))

    def after(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the results of the second region."""
        return self.second(x).tanh(), x.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inside(x)
        a, b = self.outside(h + h.exp())
        return a * b


def halved(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    """A hook of a module."""
    return (inputs[0] * 0.5,)


def data_parallel(width: int) -> nn.Module:
    """Returns a wrapped model with hooks. The reducer is torch's own in Python, which can be captured."""
    model = mlp(width)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
    model.get_submodule("2").register_full_backward_hook(halved)
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        return nn.parallel.DistributedDataParallel(model)


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Runs the block with a process group of one process."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


# Each model with its number of micro-batches.
PROGRAMS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "MLP": (mlp, 1),
    "transformer block with checkpoint": (Block, 1),
    "custom Function in the middle": (WithFunction, 1),
    "two compiled regions": (TwoRegions, 1),
    "DDP with hooks": (data_parallel, 1),
    "MLP, 4 micro-batches": (mlp, 4),
}
