"""Owns `captured_backward`: the whole autograd graph of a backward becomes one function, which is compiled.

`tape.py` writes the function. torch finds the function of a backward again by the structure of its graph.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch

from minidynamo import compat
from minidynamo.config import config
from minidynamo.frontend.arguments import checked_options
from minidynamo.frontend.captured import tape as tapes
from minidynamo.frontend.captured.router import BackwardRouter, Block
from minidynamo.frontend.compile import compile
from minidynamo.frontend.donation import steal
from minidynamo.graph.backward_calls import ContextState


class captured_backward(contextlib.ContextDecorator):
    """Captures each backward in a `with` block, or in calls of a decorated function, and compiles it as one graph.

    The graph of a backward spans compiled functions, graph breaks and code that is not compiled. Keywords are
    those of `compile`. A second backward through the same structure uses the compiled graph again.
    """

    def __init__(self, backend: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None) -> None:
        checked_options(backend=backend, fullgraph=fullgraph, dynamic=dynamic)
        self.backend, self.fullgraph, self.dynamic = backend, fullgraph, dynamic

    def __enter__(self) -> captured_backward:
        _router.open(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _router.close(self)


def _follow_settings() -> None:
    """Opens or closes the block of the setting `captured_backward`."""
    if config.captured_backward != (_router.default is not None):
        _router.set_default(captured_backward() if config.captured_backward else None)


def _tape() -> tapes.BackwardTape:
    return tapes.BackwardTape(lambda function, tape: (operator.call, CapturedBackward(function, tape)))


_router = BackwardRouter(_tape)


class CapturedBackward:
    """The function of one captured backward, and its compiled forms."""

    def __init__(self, function: Callable[..., Any], tape: tapes.BackwardTape) -> None:
        self.function, self.contexts = function, tape.contexts
        self.varies = bool(tape.sizes or tape.scalars)
        self.is_strided = tape.is_strided
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, inputs: list[torch.Tensor], sizes: Any, scalars: Any, hooks: Any, packed: Any) -> Any:
        """Returns the requested gradients; empties `inputs`."""
        if self.contexts:
            hooks = [ContextState(hook) if i in self.contexts else hook for i, hook in enumerate(hooks)]
        block = _router.end_capture()
        if block is None or torch.is_grad_enabled() or not self.is_strided or compat.any_is_batched(inputs):
            return self.function(inputs, sizes, scalars, hooks, packed)
        return self.compiled_function(block)(inputs, sizes, scalars, hooks, packed)

    def compiled_function(self, block: Block) -> Callable[..., Any]:
        """Returns the function, compiled with the settings of the block."""
        dynamic = True if self.varies and block.dynamic is None else block.dynamic
        key = (block.backend, block.fullgraph, dynamic)
        if key not in self.compiled:
            function = steal(self.function, ("inputs",))
            self.compiled[key] = compile(
                function, name="backward", backend=block.backend, fullgraph=block.fullgraph, dynamic=dynamic
            )
        return self.compiled[key]


config.on_change(_follow_settings)
_follow_settings()
