"""Owns the registry of backends, which make captured graphs callable.

A backend is a callable `(gm, example_inputs) -> callable`. `gm` is a torch.fx.GraphModule with the torch functions that
the user called; `example_inputs` are fake tensors (a list of fake tensors for a list input). The result may be boxed:
then it takes one list, empties the list and frees each input after the last use. Nothing here traces or generates code.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch.fx

from minidynamo import compat
from minidynamo.autograd.aot import aot_compile
from minidynamo.autograd.bucket_borders import add_borders, remove_borders
from minidynamo.autograd.graph.expanded_zeros import expand_zeros
from minidynamo.autograd.graph.graph_builder import copied
from minidynamo.autograd.graph.mutation import in_place
from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.partition.saving import SavePolicy
from minidynamo.autograd.reinplace.reuse import reinplace
from minidynamo.autograd.segments import compile_segments, has_cuts
from minidynamo.autograd.trace.decompositions import masked, splittable
from minidynamo.backends.stored_graphs import StoredGraphs
from minidynamo.codegen import compile_graph
from minidynamo.config import Config, config, with_changes
from minidynamo.core import artifacts
from minidynamo.core.events import notice, phase, publish
from minidynamo.errors import ArgumentError, BackendError, Diagnostic, GraphRefused, UnknownName, first_line, nearest
from minidynamo.graph.boxed import (
    BoxedCallable,
    as_boxed,
    first_location,
    graph_text,
    make_boxed,
    make_boxed_func,
    mark_boxed,
)
from minidynamo.graph.marks import COMPUTES_FIRST, IN_PLACE, RECORDS_WRITES
from minidynamo.graph.options import GraphCompiler
from minidynamo.graph.pytree import compile_flat, leaves
from minidynamo.graph.saved_tensor_hooks import to_inline
from minidynamo.graph.storage_resize import UNCOUNTED
from minidynamo.graph.torch_settings import switches_inference
from minidynamo.graph.unbacked_symints import has_index_tensors
from minidynamo.memory.graph_plan import graph_plan

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]

# Options of the function that is being compiled. A backward graph is compiled too late for a rerun of the function.
_on_error: contextvars.ContextVar[str] = contextvars.ContextVar("on_error", default="raise")
_save_policy: contextvars.ContextVar[SavePolicy | None] = contextvars.ContextVar("save_policy", default=None)


STAGES = ("forward", "backward", "inference")
"""The graphs that the autograd stage derives from a captured graph: two for training, or one for inference."""


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs the captured graph operation by operation and frees each value after its last use.

    A graph whose autograd records may have to be undone uses the autograd stage instead: that stage writes to inputs
    after all other work.
    """
    return aot_eager(gm, example_inputs) if RECORDS_WRITES in gm.meta else _interpreted(gm)


def _interpreted(gm: torch.fx.GraphModule) -> BoxedCallable:
    """Returns `make_boxed(gm)`, after publishing the predicted life of each value."""
    plan = graph_plan(gm, "captured")
    artifacts.write("memory", "captured", f"{plan}\n", ".txt", plan)
    return make_boxed(gm)


def boxed_nop(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns the captured graph, unchanged, as a boxed callable: a starting point for custom backends.

    Change `gm.graph`, then return `boxed_nop(gm, example_inputs)`: inputs and values die after their last uses.
    """
    return make_boxed(gm)


def _with_autograd(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **stages: Any) -> Callable[..., Any]:
    """Calls `aot_compile`. A graph that the autograd stage refuses runs operation by operation, after one notice.

    A graph that torch cannot trace with symbolic sizes may be traceable with the sizes of one call. The error is then
    raised for the caller to try again, unless a size depends on the values of tensors in any case.
    """
    options = {stage: artifacts.collecting(stages[stage]) for stage in STAGES}
    in_ranks = compat.HAS_DISTRIBUTED and torch.distributed.is_initialized()
    hooks, is_split = to_inline.get(), stages.pop("in_buckets", in_ranks) and add_borders(gm)
    try:
        with artifacts.discarded_on_error():
            compiled: Callable[..., Any] = aot_compile(
                gm, example_inputs, **{**stages, **options}, save_policy=_save_policy.get(), hooks=hooks
            )
    except GraphRefused as refused:
        if is_split:  # maybe a value that is no tensor lives across a border
            remove_borders(gm)
            return _with_autograd(gm, example_inputs, in_buckets=False, **stages)
        if refused.code == "MD401" and has_symbols(list(example_inputs)) and not _is_about_values(refused):
            raise
        refused.locate(first_location(gm))
        notice(replace(refused.diagnostic, what=f"a graph runs operation by operation: {refused.diagnostic.what}"))
        return _interpreted(gm)
    if not has_cuts(gm):  # after a cut, more is computed
        gm.meta[COMPUTES_FIRST] = True
    return compiled


def _is_about_values(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, compat.DynamicOutputShape):
        error = error.__cause__
    return error is not None


def _show(stage: str, graph: torch.fx.GraphModule) -> str:
    """Publishes the text of a graph that is about to be compiled, and returns the text."""
    text = graph_text(graph)
    artifacts.write("aten", stage, text)
    return text


def _with_input_writes(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns `graph`, after making ATen operators write to inputs wherever eager does."""
    reinplace(graph.graph)
    _mark_in_place(graph.graph)
    return graph


def _mark_in_place(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        node.meta[IN_PLACE] = in_place(node)


def _lowered() -> Collection[compat.OpOverload]:
    return compile_graph.lowered_ops() - masked()


@dataclass(frozen=True)
class _Generator:
    """Generates code for the stages of one graph. The backward graph is compiled later, under the same settings."""

    #: "auto", "cpp", "triton" or "aten".
    target: str
    settings: Config
    on_error: str
    #: None if the graph is not stored.
    cache: StoredGraphs | None

    def compile(self, stage: str, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Returns the graph of a stage as a boxed callable."""
        text = _show(stage, graph)
        fallback_graph = None
        kernels = self.target != "aten"
        if kernels and graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            fallback_graph = functools.partial(_with_input_writes, copied(graph))
        if stage != "backward":
            reinplace(graph.graph, lambda op: not kernels or compile_graph.find(op) is None, own_memory=not kernels)
        if not kernels:
            expand_zeros(graph.graph)
        _mark_in_place(graph.graph)
        handing_over = stage == "backward"
        try:
            with phase("codegen"), config.using(self.settings):
                compiled = compile_graph.compile_graph(
                    graph, target=self.target, name=stage, handing_over=handing_over, fallback_graph=fallback_graph
                )
        except Exception as error:
            failure = _stage_error(stage, error)
            if stage != "backward" or self.on_error == "raise":
                raise failure from (error.__cause__ or error)
            notice(failure.diagnostic)
            publish("fallback", f"{stage} graph", diagnostic=failure.diagnostic)
            return make_boxed(graph)
        if self.cache is not None and compiled.is_storable:
            self.cache.remember(compiled, text)
        return compiled.call


def _generated(target: str) -> Backend:
    kernels = target != "aten"

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        settings = config.current
        stored = kernels and settings.graph_cache and _save_policy.get() is None  # no key contains a user's function
        cache = StoredGraphs(target, settings, to_inline.get()) if stored else None
        generator = _Generator(target, settings, _on_error.get(), cache)
        stages = {stage: functools.partial(generator.compile, stage) for stage in STAGES}
        return _with_autograd(
            gm,
            example_inputs,
            **stages,
            keep=_lowered if kernels else splittable,
            cache=cache,
            images=kernels and settings.channels_last,
        )

    return backend


native = _generated("auto")
cpp = _generated("cpp")
triton = _generated("triton")
aot_eager = _generated("aten")


def inductor(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles the captured graph with torch's own code generator."""
    if any(switches_inference(node.target) for node in gm.graph.nodes):  # inductor would drop the switch
        return compile_segments(gm, example_inputs, inductor)
    as_captured = "a graph runs operation by operation: torch's code generator takes no"
    if indexed := next(filter(has_index_tensors, gm.graph.nodes), None):
        what, why = f"{as_captured} tensor as a scalar index", "The number is known when it runs."
        notice(Diagnostic("MD401", what, why, "Index with x[i[None]][0].", where=indexed.meta.get("user_location")))
        return make_boxed(gm)
    resized = next((node for node in gm.graph.nodes if node.target in UNCOUNTED), None)
    if resized is not None:  # inductor would resize copies
        what, why = f"{as_captured} resized storages", "It turns writes into new values."
        notice(Diagnostic("MD402", what, why, 'Choose backend="native".', where=resized.meta.get("user_location")))
        return make_boxed(gm)
    return make_boxed_func(compat.compile_with_inductor(gm, list(example_inputs)))


_registry: dict[str, Backend] = {
    "native": native,
    "cpp": cpp,
    "triton": triton,
    "eager": eager,
    "aot_eager": aot_eager,
    "boxed_nop": boxed_nop,
    "inductor": inductor,
}


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
        token = _on_error.set(on_error or _on_error.get())
        policy = _save_policy.set(save_policy or _save_policy.get())
        try:
            with config.using(with_changes(config.current, options)):
                return _run(name, backend, gm, example_inputs, noticed)
        finally:
            _on_error.reset(token)
            _save_policy.reset(policy)

    return GraphCompiler(name, backend, options, run, backend in (native, cpp, triton), save_policy)


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
    if backend not in _BUILT_IN:
        compat.write_code(gm)
    try:
        compiled = compile_flat(gm, example_inputs, backend)
    except (BackendError, ArgumentError):
        raise
    except Exception as error:
        compiled = None if backend in _BUILT_IN else _compiled_for_zeros(backend, gm, example_inputs)
        if compiled is None:
            raise BackendError(_failure(name, gm, error)) from error
    if not callable(compiled):
        what = f"backend {name!r} returned {type(compiled).__name__}, not a callable"
        raise BackendError(Diagnostic("MD520", what, fix="Return a function that takes the graph's inputs."))
    if backend in _BUILT_IN:
        built: Callable[..., Any] = compiled
        return built
    compiled = as_boxed(compiled, f"backend {name!r}", noticed)
    return _checked(name, gm, compiled)


_BUILT_IN = tuple(_registry.values())


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

    def call(args: list[Any]) -> Any:
        results = compiled(args)
        if not isinstance(results, (tuple, list)) or len(results) != expected:
            returned = type(results).__name__
            returned += f" of {len(results)}" if isinstance(results, (tuple, list)) else ""
            what = (
                f"the graph of backend {name!r} returned {returned}; the captured graph returns a tuple of {expected}"
            )
            raise BackendError(Diagnostic("MD522", what, fix="Return the graph's outputs in order, in a tuple."))
        return results

    return mark_boxed(call)


def _failure(name: str, gm: torch.fx.GraphModule, error: Exception) -> Diagnostic:
    path = artifacts.write("refused", name, gm.print_readable(print_output=False))
    return Diagnostic(
        "MD520",
        f"backend {name!r} failed: {type(error).__name__}",
        why=f"{first_line(error)}\nStage: the captured graph, which is in {path}",
        fix=_instead("choose another backend="),
    )


def _stage_error(stage: str, error: Exception) -> BackendError:
    """Returns `error` as a BackendError with the name of the graph and the folder of its texts."""
    where = f"Stage: code generation of the {stage} graph, whose texts are in {artifacts.code_dir()}"
    if isinstance(error, BackendError):
        return type(error)(replace(error.diagnostic, why=f"{error.diagnostic.why}\n{where}".strip()))
    what = f"no code could be generated for a graph: {type(error).__name__}"
    why = f"{first_line(error)}\n{where}"
    return BackendError(Diagnostic("MD520", what, why, _instead("report it with the files in that folder")))


def _instead(otherwise: str) -> str:
    """Returns the fix for a failed backend; without advising what the user has chosen already."""
    if _on_error.get() == "eager":
        return f"The function runs eagerly. To compile it, {otherwise}."
    return f'Run the function eagerly with on_error="eager", or {otherwise}.'
