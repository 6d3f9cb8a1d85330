"""Owns the polyfills of torch's optimizers: what stands around a step, and what it does for torch.compile alone.

Otherwise `step` is traced as it is written, on the way that it takes when nothing compiles it; which that is says
`handlers/torch_functions.py`. The numbers that a step reads from tensors are in `tracer/numbers/tensor_items.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import torch

from minidynamo.compat import OPTIMIZER_HEALTH_CHECKS, OPTIMIZER_STEP_SWITCH, OPTIMIZER_ZERO_GRAD
from minidynamo.tracer.records.registry import polyfill, polyfill_code


@polyfill_code(OPTIMIZER_STEP_SWITCH)
def step_in_its_grad_mode(step, optimizer, *args, **kwargs):
    """What the decorator of `step` does, without the graph breaks that it asks torch.compile for."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(optimizer.defaults["differentiable"])
        return step.__wrapped__(optimizer, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


@polyfill(*OPTIMIZER_HEALTH_CHECKS)
def check_health_for_graph_capture(optimizer):
    return None  # captured code is not run while an accelerator records a graph


@polyfill(torch.optim.Optimizer.zero_grad)
def zero_gradients(optimizer, set_to_none=True):
    return OPTIMIZER_ZERO_GRAD(optimizer, set_to_none)


# Other methods of schedules run as written; this one only reads.
_get_last_rates = torch.optim.lr_scheduler.LRScheduler.get_last_lr
polyfill(_get_last_rates)(_get_last_rates)
