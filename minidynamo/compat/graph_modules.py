"""Owns graph modules whose code is generated on first use: most graphs are never run or read.

The creators of graphs choose the lazy graphs.
"""

from __future__ import annotations

import typing

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module


def graph_module(modules: torch.nn.Module | dict[str, typing.Any], graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Builds `torch.fx.GraphModule(modules, graph)` with lazy code."""
    return _LazyGraphModule(modules, graph)


def traced_lazily() -> typing.ContextManager[None]:
    """Makes the graphs traced by torch in this block lazy."""
    return _use_lazy_graph_module(True)


def write_code(module: torch.fx.GraphModule) -> None:
    """Generates the code of `module` and its submodules, for callers with their own modifications of graph modules."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _LazyGraphModule.force_recompile(part)
