"""Owns how an operator of minidynamo's own comes to be, in `torch.ops.minidynamo`.

What it computes, and what stands for it in graphs, is said where it is defined.
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
    """A new operator, of a signature as in torch's schemas: `run`, or `without_data` for tensors without data.

    Without the latter, `run` only calls operators that know such tensors. `unseen`: autograd knows nothing of it: no
    gradient, no warning that there is none.
    """
    _library.define(f"{name}{signature}", tags=tuple(tags))
    _library.impl(name, run, "CompositeExplicitAutograd")
    if without_data is not None:
        _library.impl(name, without_data, "Meta")  # `register_fake` looks through all modules for the line: 12 ms
    for key in ("Autograd", "ADInplaceOrView") if unseen else ():
        _library.impl(name, torch.library.fallthrough_kernel, key)
    made: OpOverload = getattr(torch.ops.minidynamo, name).default
    return made
