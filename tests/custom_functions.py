"""Owns a custom Function for tests that need any custom Function."""

from __future__ import annotations

import torch


class Doubled(torch.autograd.Function):
    """Doubles its argument; saves the argument, and reads the saved tensor in backward only as a zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0
