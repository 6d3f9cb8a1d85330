"""Owns graph modules whose code is written when somebody runs or reads it: most graphs are only looked at.

Which graphs these are is said where they are made.
"""

from __future__ import annotations

import typing

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module


def graph_module(modules: torch.nn.Module | dict[str, typing.Any], graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """`torch.fx.GraphModule(modules, graph)`, with its code written later."""
    return _LazyGraphModule(modules, graph)


def traced_lazily() -> typing.ContextManager[None]:
    """What torch traces in this block becomes such modules."""
    return _use_lazy_graph_module(True)


def write_code(module: torch.fx.GraphModule) -> None:
    """Make `module` and those inside ordinary ones in this respect, for who takes them apart in his own way."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _LazyGraphModule.force_recompile(part)
