"""Owns the registration of minidynamo's own operators, in `torch.ops.minidynamo`.

Each operator's definition states its computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import OpOverload

_library = torch.library.Library("minidynamo", "FRAGMENT")


def define(
    name: str,
    signature: str,
    run: Callable[..., Any],
    without_data: Callable[..., Any] | None = None,
    *,
    tags: Sequence[torch.Tag] = (),
    unseen: bool = False,
) -> OpOverload:
    """Registers an operator with a signature in torch's schema syntax: `run`, or `without_data` for tensors without
    data.

    Without `without_data`, `run` must only call operators that accept tensors without data. `unseen`: autograd ignores
    the operator, with neither a gradient nor a warning.
    """
    _library.define(f"{name}{signature}", tags=tuple(tags))
    _library.impl(name, run, "CompositeExplicitAutograd")
    if without_data is not None:
        # `register_fake` would search all modules for the calling line: 12 ms
        _library.impl(name, without_data, "Meta")
    for key in ("Autograd", "ADInplaceOrView") if unseen else ():
        _library.impl(name, torch.library.fallthrough_kernel, key)
    overload: OpOverload = getattr(torch.ops.minidynamo, name).default
    return overload
