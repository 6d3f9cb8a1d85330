"""Owns the registry of backends, which make captured graphs callable.

A backend is a callable `(gm, example_inputs) -> callable`. `gm` is a torch.fx.GraphModule with the torch functions that
the user called; `example_inputs` are fake tensors (a list of fake tensors for a list input). The result may be boxed:
then it takes one list, empties the list and frees each input after the last use. Nothing here traces or generates code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch.fx

from minidynamo import compat
from minidynamo.autograd import segments
from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.partition.saving import SavePolicy
from minidynamo.backends import built_in
from minidynamo.config import config, with_changes
from minidynamo.core import artifacts
from minidynamo.errors import ArgumentError, BackendError, Diagnostic, UnknownName, first_line, nearest
from minidynamo.graph.boxed import BoxedCallable, as_boxed, first_location, make_boxed, mark_boxed
from minidynamo.graph.marks import FROM_DATA
from minidynamo.graph.options import GraphCompiler, instead, on_error_in_force, save_policy_in_force
from minidynamo.graph.pytree import compile_flat, leaves

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def boxed_nop(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns the captured graph, unchanged, as a boxed callable: a starting point for custom backends.

    Change `gm.graph`, then return `boxed_nop(gm, example_inputs)`: inputs and values die after their last uses.
    """
    return make_boxed(gm)


def _built_in(name: str) -> Backend:
    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = getattr(built_in, name)(gm, example_inputs)
        return compiled

    backend.__name__ = name
    return backend


BUILT_IN: dict[str, Backend] = {
    name: _built_in(name) for name in ("native", "cpp", "triton", "eager", "aot_eager", "inductor")
} | {"boxed_nop": boxed_nop}
"""The backends of the package, by name."""

_registry = dict(BUILT_IN)


def is_own(backend: object) -> bool:
    """Returns whether a backend is minidynamo's, not torch's or the user's: its failures are errors of minidynamo."""
    return _is_one_of(backend, BUILT_IN.keys() - {"inductor"})


def _is_one_of(backend: object, names: Iterable[str] = BUILT_IN.keys()) -> bool:
    """Returns whether a backend is a built-in one with one of these names."""
    return any(backend is BUILT_IN[name] for name in names)


def list_backends() -> list[str]:
    """Returns the names that `compile(backend=...)` accepts, sorted."""
    return sorted(_registry)


@overload
def register_backend(backend: None = None, name: str | None = None) -> Callable[[Backend], Backend]: ...
@overload
def register_backend(backend: Backend, name: str | None = None) -> Backend: ...
def register_backend(backend: Backend | None = None, name: str | None = None) -> Any:
    """Registers `backend` under `name` (its `__name__` if None) and returns it. Also a decorator.

    Raises ArgumentError if the backend is not callable or has no name, or if another backend has the name.
    """
    if backend is None:
        return functools.partial(register_backend, name=name)
    if not callable(backend):
        what = f"register_backend got {type(backend).__name__}, not a callable"
        raise ArgumentError(Diagnostic("MD108", what, fix="Pass a function (gm, example_inputs) -> callable."))
    label = _name_of(backend) if name is None else name
    if not isinstance(label, str) or not label or (name is None and label == "<lambda>"):
        what = f"register_backend needs a name for a backend, and {label!r} is none"
        raise ArgumentError(Diagnostic("MD108", what, fix='Pass name="...".'))
    if _registry.get(label, backend) is not backend:
        what = f"a backend named {label!r} exists already"
        raise ArgumentError(Diagnostic("MD108", what, fix="Choose another name=."))
    _registry[label] = backend
    return backend


def resolve(
    backend: str | Backend,
    options: dict[str, Any] | None = None,
    *,
    on_error: str | None = None,
    save_policy: SavePolicy | None = None,
) -> GraphCompiler:
    """Looks up a backend; `options` are config fields that are set while the backend compiles.

    With `on_error` "eager", a backward graph that cannot be compiled runs operation by operation; None keeps the
    setting of the enclosing compile. `save_policy` influences which tensors forward graphs save for backward.

    Raises UnknownName for a name that is not registered, ArgumentError for an object that is neither name nor callable.
    """
    if isinstance(backend, str):
        if backend not in _registry:
            what = f"there is no backend named {backend!r}.{nearest(backend, _registry)}"
            raise UnknownName(Diagnostic("MD102", what, fix=f"Use one of {', '.join(list_backends())}, or a callable."))
        return _graph_compiler(backend, _registry[backend], options or {}, on_error, save_policy)
    if not callable(backend):
        what = f"backend must be a name or a callable, not {type(backend).__name__}"
        raise ArgumentError(Diagnostic("MD102", what, fix=f"Use one of {', '.join(list_backends())}, or a callable."))
    return _graph_compiler(_name_of(backend), backend, options or {}, on_error, save_policy)


def _name_of(backend: Backend) -> str:
    name = getattr(backend, "__name__", None)
    return name if isinstance(name, str) else type(backend).__name__


def _graph_compiler(
    name: str, backend: Backend, options: dict[str, Any], on_error: str | None, save_policy: SavePolicy | None
) -> GraphCompiler:
    noticed: set[tuple[str, str]] = set()

    def run(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        token = on_error_in_force.set(on_error or on_error_in_force.get())
        policy = save_policy_in_force.set(save_policy or save_policy_in_force.get())
        try:
            with config.using(with_changes(config.current, options)):
                return _run(name, backend, gm, example_inputs, noticed)
        finally:
            on_error_in_force.reset(token)
            save_policy_in_force.reset(policy)

    return GraphCompiler(name, backend, options, run, _is_one_of(backend, ("native", "cpp", "triton")), save_policy)


def _run(
    name: str,
    backend: Backend,
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    noticed: set[tuple[str, str]],
) -> Callable[..., Any]:
    """Compiles a graph and returns a boxed callable; adapts a callable that is not boxed, with one notice about the
    cost.

    `noticed` has the notices that were shown for the compiled function of this graph.

    Raises BackendError, with the backend's own exception as cause.
    """
    is_built_in = _is_one_of(backend)
    if not is_built_in and any(FROM_DATA in node.meta for node in gm.graph.nodes):
        run = functools.partial(_run, name, backend, noticed=noticed)
        return segments.compile_segments(gm, example_inputs, run)
    if not is_built_in:
        compat.write_code(gm)
    try:
        compiled = compile_flat(gm, example_inputs, backend)
    except (BackendError, ArgumentError):
        raise
    except Exception as error:
        compiled = None if is_built_in else _compiled_for_zeros(backend, gm, example_inputs)
        if compiled is None:
            raise BackendError(_failure(name, gm, error)) from error
    if not callable(compiled):
        what = f"backend {name!r} returned {type(compiled).__name__}, not a callable"
        raise BackendError(Diagnostic("MD520", what, fix="Return a function that takes the graph's inputs."))
    if is_built_in:
        built: Callable[..., Any] = compiled
        return built
    compiled = as_boxed(compiled, f"backend {name!r}", noticed)
    return _checked(name, gm, compiled)


def _compiled_for_zeros(
    backend: Backend, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any] | None:
    """Calls a backend that failed with fake tensors, as `torch.jit.trace` does, with real tensors of zeros.

    Returns None if the backend fails again, or sizes are symbolic.
    """
    if has_symbols(leaves([*example_inputs])):
        return None

    def with_zeros(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return backend(graph, [*map(_zeros_like, examples)])

    try:
        compiled: Callable[..., Any] = compile_flat(gm, example_inputs, with_zeros)
    except Exception:
        return None
    return compiled


def _zeros_like(example: Any) -> Any:
    """Returns a real tensor of zeros for a fake tensor; other values as they are."""
    if not isinstance(example, torch.Tensor):
        return example
    zeros = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device).zero_()
    if isinstance(example, torch.nn.Parameter):
        return torch.nn.Parameter(zeros, example.requires_grad)
    return zeros.requires_grad_(example.requires_grad)


def _checked(name: str, gm: torch.fx.GraphModule, compiled: BoxedCallable) -> BoxedCallable:
    """Returns `compiled` with a check: raises BackendError (MD522) if the results do not match the graph's outputs."""
    expected = len(next(node.args[0] for node in gm.graph.nodes if node.op == "output"))
    where = first_location(gm)

    def call(args: list[Any]) -> Any:
        results = compiled(args)
        if not isinstance(results, (tuple, list)) or len(results) != expected:
            returned = type(results).__name__
            returned += f" of {len(results)}" if isinstance(results, (tuple, list)) else ""
            what = (
                f"the graph of backend {name!r} returned {returned}; the captured graph returns a tuple of {expected}"
            )
            fix = "Return the graph's outputs in order, in a tuple: (y,) for a single output y."
            raise BackendError(Diagnostic("MD522", what, fix=fix, where=where))
        return results

    return mark_boxed(call)


def _failure(name: str, gm: torch.fx.GraphModule, error: Exception) -> Diagnostic:
    path = artifacts.write("refused", name, compat.readable_text(gm))
    return Diagnostic(
        "MD520",
        f"backend {name!r} failed: {type(error).__name__}",
        why=f"{first_line(error)}\nStage: the captured graph, which is in {path}",
        fix=instead("choose another backend="),
    )
