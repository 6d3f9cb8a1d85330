"""Owns private names of torch.func's transforms, and of values that stand for many.

How a program with transforms is captured is known in `graph/func_transforms.py` and `tracer/handlers/transforms.py`.
"""

from __future__ import annotations

import torch

_functorch = torch._C._functorch
_is_old_batch = _functorch.is_legacy_batchedtensor

# The transform of torch.func (vmap, grad, jvp) that is running now, or None.
running_transform = _functorch.peek_interpreter_stack
are_transforms_active = torch._C._are_functorch_transforms_active

# What runs inside knows of no vmap around it.
outside_of_batches = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def is_batched(value: torch.Tensor) -> bool:
    """Whether `value` stands for one of many that are computed at once (`is_grads_batched=True`, vmap)."""
    return bool(_functorch.is_batchedtensor(value) or _is_old_batch(value))


def batch_level(value: torch.Tensor) -> int | None:
    """Which of the batches around the code `value` comes from, the innermost one for a batch of batches; None if it is
    none. Those of `is_grads_batched` count below 0."""
    if _functorch.is_batchedtensor(value):
        return int(_functorch.maybe_get_level(value))
    if not _is_old_batch(value):
        return None
    inner = (-n for n in range(1, 64) if not _is_old_batch(torch._remove_batch_dim(value, n, 1, 0)))
    return next(inner)


def unbatched(value: torch.Tensor, level: int) -> torch.Tensor:
    """All of a batch, one behind the other."""
    made: torch.Tensor
    if level < 0:
        made = torch._remove_batch_dim(value, -level, 1, 0)
    else:
        made = _functorch.get_unwrapped(value).movedim(_functorch.maybe_get_bdim(value), 0)
    return made


def batched(value: torch.Tensor, level: int) -> torch.Tensor:
    """The reverse of `unbatched`."""
    made: torch.Tensor
    if level < 0:
        made = torch._add_batch_dim(value, 0, -level)
    else:
        made = _functorch._add_batch_dim(value, 0, level)
    return made
