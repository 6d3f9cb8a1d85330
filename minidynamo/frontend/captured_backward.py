"""Owns `captured_backward`: the whole autograd graph of a backward becomes one function, which is compiled.

`backward_tape.py` writes the function. torch finds the function of a backward again by the structure of its graph.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidynamo import compat
from minidynamo.config import config
from minidynamo.frontend import backward_tape
from minidynamo.frontend.compile import compile
from minidynamo.frontend.donation import steal
from minidynamo.graph.backward_calls import ContextState


class captured_backward(contextlib.ContextDecorator):
    """Captures each backward in a `with` block, or in calls of a decorated function, and compiles it as one graph.

    The graph of a backward goes through compiled functions, graph breaks and code that is not compiled. Keywords are
    those of `compile`. A second backward through the same structure uses the compiled graph again.
    """

    def __init__(self, backend: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None) -> None:
        self.keywords = {"backend": backend, "fullgraph": fullgraph, "dynamic": dynamic}
        self.open: list[contextlib.ExitStack] = []

    def __enter__(self) -> captured_backward:
        stack = contextlib.ExitStack()
        _captures.forget_foreign()
        stack.enter_context(_captures.using(self))
        stack.enter_context(compat.backward_compiler(_tape, self.keywords["dynamic"] is True))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        self.open.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self.open.pop().__exit__(*error)


class _Captures:
    """The blocks that are open, and the number of captures of torch's compiled autograd at the last check."""

    def __init__(self) -> None:
        self.open: list[captured_backward] = []
        self.foreign = 0

    def forget_foreign(self) -> None:
        """Forgets all captured graphs if torch's own compiled autograd has captured some of them."""
        found = compat.captures_of_torch_compile()
        if found != self.foreign:
            compat.forget_captured_backwards()
            self.foreign = found

    @contextlib.contextmanager
    def using(self, block: captured_backward) -> Iterator[None]:
        """Makes `block` the innermost one."""
        self.open.append(block)
        try:
            yield
        finally:
            self.open.remove(block)


_captures = _Captures()


class _Always:
    """The block that the setting `captured_backward` opens."""

    def __init__(self) -> None:
        self.block = contextlib.ExitStack()
        self.is_open = False

    def follow_settings(self) -> None:
        """Opens or closes the block."""
        if config.captured_backward == self.is_open:
            return
        self.is_open = config.captured_backward
        if self.is_open:
            self.block.enter_context(captured_backward())
        else:
            self.block.close()


def _tape() -> backward_tape.BackwardTape:
    return backward_tape.BackwardTape(lambda *found: (operator.call, CapturedBackward(*found)))


class CapturedBackward:
    """The function of one captured backward, and its compiled forms."""

    def __init__(self, function: Callable[..., Any], tape: backward_tape.BackwardTape) -> None:
        self.function, self.contexts = function, tape.contexts
        self.varies = bool(tape.sizes or tape.scalars)
        self.is_strided = tape.is_strided
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, inputs: list[torch.Tensor], sizes: Any, scalars: Any, hooks: Any, packed: Any) -> Any:
        """Returns the requested gradients; empties `inputs`."""
        if self.contexts:
            hooks = [ContextState(hook) if i in self.contexts else hook for i, hook in enumerate(hooks)]
        with compat.backward_compiler(None):
            if torch.is_grad_enabled() or not self.is_strided or compat.any_is_batched(inputs):
                return self.function(inputs, sizes, scalars, hooks, packed)
            return self.compiled_function()(inputs, sizes, scalars, hooks, packed)

    def compiled_function(self) -> Callable[..., Any]:
        """Returns the function, compiled with the settings of the innermost block."""
        keywords = dict(_captures.open[-1].keywords)
        if self.varies and keywords["dynamic"] is None:
            keywords["dynamic"] = True
        key = tuple(keywords.values())
        if key not in self.compiled:
            self.compiled[key] = compile(steal(self.function, ("inputs",)), name="backward", **keywords)
        return self.compiled[key]


_always = _Always()
config.on_change(_always.follow_settings)
_always.follow_settings()
