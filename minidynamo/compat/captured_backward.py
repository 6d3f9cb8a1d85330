"""Owns private names of torch's capture of autograd graphs: the compiler that torch calls, and the running backward.

The compiler itself, which records torch's calls, is `frontend/captured/tape.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import types
import typing

import torch

from minidynamo.compat.symbols import symbolic

Compiler: typing.TypeAlias = typing.Callable[[], typing.Any]

_engine: typing.Any = torch._C._dynamo.compiled_autograd

# Runs C++ hooks on a gradient, such as `retain_grad()`, given their number.
run_cpp_hooks: typing.Callable[..., torch.Tensor] = getattr(_engine, "call_cpp_tensor_pre_hooks", None)  # type: ignore


@contextlib.contextmanager
def backward_compiler(new_compiler: Compiler | None, dynamic: bool = False) -> typing.Iterator[None]:
    """Makes torch capture each backward of the block with a `new_compiler()`; with None, backwards run as usual.

    `dynamic`: sizes are symbolic in the first capture of a graph; otherwise after a change.
    """
    before = _engine.set_autograd_compiler(new_compiler, dynamic)
    try:
        yield
    finally:
        _engine.set_autograd_compiler(*before)


def end_capture() -> None:
    """Makes backwards run as usual, until the end of the innermost block of `backward_compiler`."""
    _engine.set_autograd_compiler(None, False)


def is_second_capture(error: NotImplementedError) -> bool:
    """Returns whether torch refused a capture because a captured backward runs."""
    return "within another compiled autograd call" in str(error)


_engine_of_torch: typing.Any = torch.autograd.Variable._execution_engine


class Router(typing.Protocol):
    """Runs backwards in place of torch's engine."""

    def run(self, start: typing.Callable[[], typing.Any]) -> typing.Any:
        """Returns the result of `start()`, which runs a backward."""
        ...

    def queue_callback(self, callback: typing.Callable[[], None]) -> bool:
        """Queues a function for the end of the running backward; returns False if torch must queue it."""
        ...


class _RoutedEngine(type(_engine_of_torch)):
    """torch's engine of autograd. A router runs each backward that Python starts."""

    router: Router

    def run_backward(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return self.router.run(functools.partial(super().run_backward, *args, **kwargs))

    def queue_callback(self, callback: typing.Callable[[], None]) -> None:
        if not self.router.queue_callback(callback):
            super().queue_callback(callback)


def route_backwards(router: Router | None) -> None:
    """Makes torch start backwards through `router`; with None, as usual."""
    if router is not None:
        _RoutedEngine.router = router
    torch.autograd.Variable._execution_engine = _engine_of_torch if router is None else _RoutedEngine()


_of_thread = threading.local()


def is_uncaptured() -> bool:
    """Returns whether the thread is in a block of `uncaptured`."""
    return getattr(_of_thread, "is_uncaptured", False)


@contextlib.contextmanager
def uncaptured() -> typing.Iterator[None]:
    """Runs the thread's backwards as usual: a router asks `is_uncaptured`. Without a router, the block ends torch's
    compiled autograd, too."""
    before, _of_thread.is_uncaptured = is_uncaptured(), True
    is_routed = isinstance(torch.autograd.Variable._execution_engine, _RoutedEngine)
    try:
        with contextlib.nullcontext() if is_routed else backward_compiler(None):
            yield
    finally:
        _of_thread.is_uncaptured = before


# Forgets all captured graphs.
forget_captured_backwards: typing.Callable[[], None] = _engine.clear_cache


def captures_of_torch_compile() -> int:
    """Returns how many graphs torch's own compiled autograd has captured in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["compiled_autograd"]["captures"])


def _formulas() -> typing.Any:
    """Returns torch's table of formulas. Torch sends each formula once in a process, to the table of the compiler."""
    return importlib.import_module("torch._dynamo.compiled_autograd").ops


def add_backward_formula(name: str, function: typing.Any, is_custom: bool, is_traceable: bool) -> str:
    """Adds the function that computes the gradients of a node; returns the name in the table."""
    added: str = _formulas().add(name, function, is_custom, is_traceable)
    return added


@functools.cache
def backward_formula(name: str) -> tuple[typing.Callable[..., typing.Any], bool]:
    """Returns the function in the table, and whether it may be run on fake tensors."""
    formula = _formulas().get(name)
    return getattr(formula, "fn", formula), hasattr(formula, "fn")


def is_formula_of_torch(name: str) -> bool:
    """Returns whether the function in the table is torch's own, not of a node that an extension wrote in C++."""
    return not getattr(_formulas().get(name), "is_custom_function", True)


def sequence_number(node: typing.Any) -> int:
    """Returns the number by which autograd orders ready nodes: the greatest runs first."""
    return int(node._sequence_nr())


def running_backward(
    frame: types.FrameType | None = None,
) -> tuple[typing.Sequence[torch.Tensor], typing.Sequence[typing.Any]] | None:
    """Returns the tensors that a backward starts at, and the requested inputs; None if unknown. The backward is the one
    that runs above the caller, or above `frame`.
    """
    code = torch.autograd.graph._engine_run_backward.__code__
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else (frame.f_locals["t_outputs"], frame.f_locals["args"][3])


def fake_mode_for_backward() -> typing.Any:
    """Returns a new mode for the fake tensors of one captured backward."""
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    return fake_tensor.FakeTensorMode(allow_non_fake_inputs=True, shape_env=symbolic().ShapeEnv())


@contextlib.contextmanager
def on_fakes(mode: typing.Any) -> typing.Iterator[None]:
    """Runs the block on fake tensors of `mode`; decisions about symbolic numbers follow their values, unrecorded."""
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    with mode, shapes._suppress_guards(mode.shape_env):
        yield


def fake_like(mode: typing.Any, value: torch.Tensor) -> torch.Tensor | None:
    """Returns a fake tensor like `value`, without its history; None if torch has no fake tensors of this kind."""
    try:
        fake: torch.Tensor = mode.from_tensor(value.detach(), static_shapes=True)
    except Exception:  # batched tensors and subclasses raise various errors
        return None
    return fake


def symbolic_number(mode: typing.Any, value: float, name: str) -> typing.Any:
    """Returns a new symbolic number with this value."""
    env, source = mode.shape_env, symbolic().NamedSource(name)
    kind = symbolic().DimDynamic.DYNAMIC
    if isinstance(value, int):
        return env.create_unspecified_symint_and_symbol(value, source, kind)
    symbol = env.create_unspecified_symbol(value, source=source, dynamic_dim=kind)
    return env.create_symfloatnode(symbol, hint=value, source=source)


def text_of_number(number: typing.Any) -> str:
    """Returns the Python text of a symbolic number, in terms of the names of its symbols."""
    text, symbols = symbolic().text(number.node.expr)
    return str(text).format(*symbols)


def hint_of_number(number: typing.Any) -> int | float:
    """Returns the value of a number in this call; a symbolic number has a hint."""
    return number if isinstance(number, (int, float)) else number.node.hint
