"""Owns calls of modules that `DistributedDataParallel` wraps: the wrapper's own code runs eagerly, since it
communicates; the wrapped module is compiled.

`autograd/backward_stages.py` decides when gradients leave backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.compat import module_call

_COMPILED_CALL = "_compiled_call_impl"


def call_wrapper(
    wrapper: torch.nn.Module, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Calls a `DistributedDataParallel` eagerly. Meanwhile `call(module, ...)` is the call of the wrapped module."""
    module: Any = wrapper.module
    attributes = vars(module)
    before = attributes.get(_COMPILED_CALL)
    attributes[_COMPILED_CALL] = functools.partial(call, module)
    try:
        return module_call(type(wrapper))(wrapper, *args, **kwargs)
    finally:
        if before is None:
            del attributes[_COMPILED_CALL]
        else:
            attributes[_COMPILED_CALL] = before
