"""Owns private names of torch.func's transforms, and of batched tensors.

`graph/func_transforms.py` and `tracer/handlers/transforms.py` capture programs with transforms.
"""

from __future__ import annotations

import torch

_functorch = torch._C._functorch
_is_old_batch = _functorch.is_legacy_batchedtensor

# Returns the running transform of torch.func (vmap, grad, jvp), or None.
running_transform = _functorch.peek_interpreter_stack
are_transforms_active = torch._C._are_functorch_transforms_active

# Hides enclosing transforms, such as vmap, from the code inside.
without_transforms = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def is_batched(value: torch.Tensor) -> bool:
    """Returns whether `value` is a batched tensor (`is_grads_batched=True`, vmap)."""
    return bool(_functorch.is_batchedtensor(value) or _is_old_batch(value))


def batch_level(value: torch.Tensor) -> int | None:
    """Returns the level of the innermost batch around the code that `value` belongs to; None if it is not batched.
    Levels of `is_grads_batched` are below 0.
    """
    if _functorch.is_batchedtensor(value):
        return int(_functorch.maybe_get_level(value))
    if not _is_old_batch(value):
        return None
    inner = (-n for n in range(1, 64) if not _is_old_batch(torch._remove_batch_dim(value, n, 1, 0)))
    return next(inner)


def unbatched(value: torch.Tensor, level: int) -> torch.Tensor:
    """Returns the whole batch, with the batch dimension first."""
    made: torch.Tensor
    if level < 0:
        made = torch._remove_batch_dim(value, -level, 1, 0)
    else:
        made = _functorch.get_unwrapped(value).movedim(_functorch.maybe_get_bdim(value), 0)
    return made


def batched(value: torch.Tensor, level: int) -> torch.Tensor:
    """Inverts `unbatched`."""
    made: torch.Tensor
    if level < 0:
        made = torch._add_batch_dim(value, 0, -level)
    else:
        made = _functorch._add_batch_dim(value, 0, level)
    return made
