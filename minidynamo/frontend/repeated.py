"""Owns the choice of the modules that `compile(model, repeated=True)` compiles, and the overview of what it chose.

Compiles nothing; `compile.py` compiles the chosen modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from minidynamo.core.records import record
from minidynamo.errors import counted
from minidynamo.frontend.explain import Explanation

_CONTAINERS = (nn.ModuleList, nn.Sequential)


def repeated_modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yields the blocks of a model, with their names. A block is a module in an outermost list or sequence, where its
    class occurs several times.

    A module of torch without submodules, such as `nn.Linear`, is no block. A module whose class occurs once may contain
    lists of its own.
    """
    found = [*_in_containers(model, prefix)]
    counts = Counter(type(module) for _, module in found)
    for name, module in found:
        if counts[type(module)] == 1:
            yield from repeated_modules(module, f"{name}.")
        elif any(True for _ in module.children()) or not type(module).__module__.startswith("torch.nn."):
            yield name, module


def _in_containers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yields the modules in the outermost containers of a module; a container in a container is a part of it."""
    for name, child in module.named_modules(remove_duplicate=False):
        if not name or "." in name:
            continue
        if isinstance(child, _CONTAINERS) or not isinstance(module, _CONTAINERS):
            yield from _in_containers(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


@record(frozen=True)
class RepeatedBlocks:
    """The overview of a model of which the repeated blocks are compiled."""

    #: the class of the model
    name: str
    #: the explanation of each compiled block, by the name of the block in the model
    blocks: dict[str, Explanation]

    def __str__(self) -> str:
        lines = [f"{self.name}: {counted(len(self.blocks), 'repeated block')} compiled, the rest is as it was"]
        for name, block in self.blocks.items():
            compiled, used = counted(block.stats.compiles, "compile"), counted(block.stats.shared, "version")
            lines.append(f"  {name}: {compiled}, {used} of equal blocks")
        return "\n".join(lines)
