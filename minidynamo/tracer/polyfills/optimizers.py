"""Owns the polyfills of torch's optimizers: the wrapper of a step, and its special cases for torch.compile.

The step itself is traced directly, through its branches for eager (`handlers/torch_functions.py`). Numbers that a step
reads from tensors are not here (`tracer/numbers/tensor_items.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import torch

from minidynamo.compat import OPTIMIZER_HEALTH_CHECKS, OPTIMIZER_STEP_SWITCH, OPTIMIZER_ZERO_GRAD
from minidynamo.tracer.records.registry import polyfill, polyfill_code


@polyfill_code(OPTIMIZER_STEP_SWITCH)
def step_in_its_grad_mode(step, optimizer, *args, **kwargs):
    """Executes the decorator of `step`, without the graph breaks that it requests from torch.compile."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(optimizer.defaults["differentiable"])
        return step.__wrapped__(optimizer, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


@polyfill(*OPTIMIZER_HEALTH_CHECKS)
def check_health_for_graph_capture(optimizer):
    return None  # captured code does not run while an accelerator records a graph


@polyfill(torch.optim.Optimizer.zero_grad)
def zero_gradients(optimizer, set_to_none=True):
    return OPTIMIZER_ZERO_GRAD(optimizer, set_to_none)


# Other methods of schedules run eagerly; this method only reads.
_get_last_rates = torch.optim.lr_scheduler.LRScheduler.get_last_lr
polyfill(_get_last_rates)(_get_last_rates)
