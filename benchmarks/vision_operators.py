"""Owns the import of torchvision where its operators are built for another torch than the installed version.

transformers and timm import torchvision for its Python code. torchvision registers rules for its own operators, and
raises where the operators do not exist.
"""

from __future__ import annotations

import importlib

import torch

_OPERATORS = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
_BACKWARDS = tuple(f"_{name}_backward" for name in _OPERATORS[2:])
_library: torch.library.Library | None = None


def import_torchvision() -> None:
    """Imports torchvision; defines the operators as stubs if their library could not be loaded."""
    global _library
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        if _library is not None:
            raise
        _library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS + _BACKWARDS:
            _library.define(f"{name}() -> ()")
        importlib.import_module("torchvision")
