"""Owns what is known of the memory that torch's own kernels take while they run, on top of their results.

Known are convolutions of float32 on the CPU: oneDNN works on copies in layouts of its own. Which layouts it chooses
depends on the processor, so this is an estimate. What other kernels take is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, Name
from minidynamo.codegen.ir.size import hint

aten = torch.ops.aten


def workspace(call: Extern, buffers: Mapping[str, Buffer]) -> int:
    """The most bytes that `call` takes while it runs, apart from its result if that is one tensor. `buffers` are the
    tensors that exist, by name."""
    operands = [buffers.get(arg.name) if isinstance(arg, Name) else None for arg in call.args[:3]]
    if call.op is aten.convolution.default:
        x, w, _ = operands
        if x is None or w is None or call.layout is None or not _by_onednn(x, w):
            return 0
        if _channels_last(x):  # the weights are copied into that layout, and from there
            return 2 * _size(w)
        # The operands are copied, the result is made; then it is copied, and the operands are gone.
        return max(_size(x) + _size(w), _size(call.layout))
    if call.op is aten.convolution_backward.default:
        gradient, x, w = operands
        if gradient is None or x is None or w is None or not _by_onednn(x, w):
            return 0
        if _channels_last(x) and _channels_last(gradient):
            return _size(x) + 4 * _size(w)
        g, x_size, w_size = _size(gradient), _size(x), _size(w)
        # First the input's gradient, then the weight's: each is made from copies, then copied.
        return max(g + w_size + x_size, x_size + max(x_size, x_size + g + w_size, 2 * w_size))
    return 0


def _by_onednn(*operands: Buffer) -> bool:
    fitting = all(one.dtype == torch.float32 and one.device.type == "cpu" for one in operands)
    return fitting and torch.backends.mkldnn.is_available()


def _channels_last(image: Buffer) -> bool:
    return len(image.shape) == 4 and image.stride[1] == 1 and image.stride[3] != 1


def _size(buffer: Buffer) -> int:
    return hint(buffer.nbytes)
