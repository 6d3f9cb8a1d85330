"""Owns torch's own fake tensor mode, `make_fx` and printer under the names of `standalone`, where its import fails.

Does not avoid the import of `torch._dynamo`.
"""

from __future__ import annotations

import functools

import torch
import torch._subclasses.fake_tensor
import torch.fx.experimental.proxy_tensor

from minidynamo.compat.python import in_thread

FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
StandaloneFakeTensorMode = FakeTensorMode
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
make_fx = torch.fx.experimental.proxy_tensor.make_fx


@functools.cache
def load_fake_tensors() -> None:
    """Imports the dependencies of the first fake mode, in a thread: the import keeps all frames below it alive."""
    in_thread(lambda: __import__("torch._dynamo"))
    in_thread(FakeTensorMode)


def readable_text(gm: torch.fx.GraphModule) -> str:
    """Returns the text that `gm.print_readable` prints."""
    return gm.print_readable(print_output=False)
