"""Owns fallback ops: operations whose derivatives read data. In a graph without data, each such derivative is a single
call.

The call runs the operation under torch's autograd on the recorded arguments, and differentiates it. The derivative of
the call is a call of the same kind. `joint.py` finds the operations that become fallback ops. An operation with
symbolic numbers is a call itself; `scalar_arguments.py` lists such operations.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, track_tensor_tree
from torch.fx.node import map_aggregate

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import ancestors
from minidynamo.autograd.graph.layouts import has_batches
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.autograd.graph.recomputation import is_random
from minidynamo.autograd.trace.grad_graph_queries import EXTRA_EDGES, reachable_functions
from minidynamo.compat import FakeTensor, OpOverload
from minidynamo.graph.scalar_arguments import key_of_whole
from minidynamo.graph.torch_settings import preserved, restore, settings

Tensors = Sequence[torch.Tensor]

# Gradient functions that choose a formula by data. For tensors without data they compute all formulas and select with
# `where`, or use a slower formula. Infinite values, and derivatives of the formulas that are not selected, may then be
# NaN or differ from eager.
CHOOSES_BY_DATA = frozenset({"CumprodBackward0", "ProdBackward0", "ProdBackward1"})
CHOOSES_IN_HIGHER_ORDER = CHOOSES_BY_DATA | {"LinalgDetBackward0"}  # for higher derivatives

# Gradient function -> results whose gradients the function inspects. Vectors are known only up to a phase; if there is
# data, the function raises an error for ill-defined gradients of vectors.
REFUSES_BY_DATA = {"LinalgEigBackward0": {1}, "LinalgEighBackward0": {1}, "LinalgSvdBackward0": {0, 2}}


class NoFallbackOp(Exception):
    """Raised for an operation that cannot run a second time on the recorded arguments."""


class Operation:
    """A call of `function`, as a function of the tensors among its arguments, under the settings at construction.

    With `takes_numbers`, the symbolic numbers among the arguments are parameters too: they follow the tensors, in
    reverse order.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], takes_numbers: bool = False
    ) -> None:
        self.function = function
        #: The same computation without writes to the arguments, for an in-place method; else None.
        self.without_writes = _without_writes(function)
        self.takes_numbers = takes_numbers
        #: The tensor arguments. The parameters are these tensors, then `numbers` in reverse order.
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        #: (args, kwargs) with a slot in place of each parameter.
        self.arguments = map_aggregate((args, kwargs), self._as_parameter)
        #: The result of the last run with a slot in place of each tensor.
        self.structure: Any = None
        self.settings = settings()
        #: Parameter -> number of writes to the parameter.
        self.written: dict[int, int] = {}
        #: Parameters whose data no derivative reads.
        self.unread: frozenset[int] = frozenset()
        #: Positions of results that autograd treats as constants.
        self.constant: frozenset[int] = frozenset()
        #: Positions of results that autograd saves; derivatives receive these results.
        self.saved_results: tuple[int, ...] = ()
        self.requires_grad = tuple(value.requires_grad for value in self.tensors) + (False,) * len(self.numbers)
        self.__name__ = _names_of(function)[-1]

    @property
    def key(self) -> str:
        """Returns a text that is equal for operations with the same function, arguments and settings."""
        return repr((key_of_whole(self.function) or _names_of(self.function), self.arguments, self.settings))

    def __repr__(self) -> str:
        return self.__name__

    def _as_parameter(self, value: Any) -> Any:
        if is_symbolic(value):
            if self.takes_numbers:
                self.numbers.append(value)
                return _Slot(-len(self.numbers))
            raise NoFallbackOp(f"its argument {value} differs from call to call")
        if not isinstance(value, torch.Tensor):
            return value
        self.tensors.append(value)
        return _Slot(len(self.tensors) - 1)

    def run(self, values: Sequence[Any], function: Callable[..., Any] | None = None) -> list[torch.Tensor]:
        """Returns the result tensors for `values`, and may write to `values`. `function` replaces the operation's
        function."""
        args, kwargs = _filled(self.arguments, values)
        results: list[torch.Tensor] = []

        tensors = (value for value in values if isinstance(value, torch.Tensor) and self.takes_numbers)
        memories = set(map(compat.memory_of, tensors))

        def as_result(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            results.append(value.clone() if memories and compat.memory_of(value) in memories else value)
            return _Slot(len(results) - 1)

        self.structure = map_aggregate((function or self.function)(*args, **kwargs), as_result)
        return results

    def analyze(self) -> None:
        """Records the written parameters, the parameters that no derivative reads, and the results that
        autograd saves."""
        tracer = _tracer()
        before = set(tracer.graph.nodes)
        saved: list[torch.Tensor] = []

        def pack(value: torch.Tensor) -> torch.Tensor:
            saved.append(value)
            return value

        with torch.enable_grad(), saved_tensors_hooks(pack, lambda value: value):
            inputs = [_input(value.detach(), _is_differentiable(value)) for value in self.tensors]
            copies = [value.clone() for value in inputs]
            results = self.run(copies)
        if any(is_random(node) for node in tracer.graph.nodes if node not in before):
            raise NoFallbackOp("it draws random numbers")
        self.written = {i: copy._version for i, copy in enumerate(copies) if copy._version}
        if any(isinstance(function, BackwardCFunction) for function in reachable_functions(results)):
            return  # the function may store tensors as attributes of its context
        saved_nodes = {tracer.unwrap_proxy(value).node for value in saved}
        read = ancestors(saved_nodes)
        self.unread = frozenset(i for i, value in enumerate(inputs) if tracer.unwrap_proxy(value).node not in read)
        needs_no_saving = self.unread.union(self.written)  # autograd saves a copy of a written parameter
        if all(i in needs_no_saving or tracer.unwrap_proxy(copy).node in saved_nodes for i, copy in enumerate(copies)):
            self.saved_results = tuple(
                i for i, value in enumerate(results) if tracer.unwrap_proxy(value).node in saved_nodes
            )

    def trace(self, targets: Tensors, values: Tensors) -> list[torch.Tensor]:
        """Returns the results of `run` on `values`, traced. `targets` are the tensors that the operation writes to."""
        if self.takes_numbers:
            results = _one_node(self, values)
            if len(results) > 1:
                self.constant = self._without_gradients(values)
            return results
        written = dict(zip(self.written, targets))
        return self.run([written.get(i, value) for i, value in enumerate(values)])

    def _without_gradients(self, values: Sequence[Any]) -> frozenset[int]:
        """Returns the positions of the results that torch treats as constants."""
        inputs = [_input(_hint(value), wanted) for value, wanted in zip(values, self.requires_grad)]
        with disable_proxy_modes_tracing(), torch.enable_grad(), preserved():
            restore(self.settings)
            return frozenset(i for i, result in enumerate(self.run(inputs)) if not result.requires_grad)

    def __call__(self, *values: Any) -> list[torch.Tensor]:
        """Returns the results for real tensors, and leaves the tensors unchanged."""
        differentiable = torch.is_grad_enabled()
        written = self.written if self.without_writes is None else {}
        arguments = [value.clone() if i in written else _hint(value) for i, value in enumerate(values)]
        with preserved():
            restore(self.settings)
            if differentiable or not self.takes_numbers:
                return self.run(arguments, self.without_writes)
            # Torch may choose the kernel by which arguments require grad.
            return [result.detach() for result in self.run([*map(_input, arguments, self.requires_grad)])]


class Gradients:
    """The gradients of `function` by its `wanted` parameters, as a single call.

    The call takes all parameters of `function`, then the results that `function` saves, then the tangents of the
    results for which `has_tangent` is true. For parameters in `unread` only the layout matters.
    """

    def __init__(
        self, function: Operation | Gradients, wanted: tuple[bool, ...], has_tangent: tuple[bool, ...]
    ) -> None:
        self.function = function
        self.wanted = wanted
        self.has_tangent = has_tangent
        self.written: dict[int, int] = {}
        self.unread: frozenset[int] = function.unread
        self.saved_results: tuple[int, ...] = ()
        self.__name__: str = f"gradients_of_{function.__name__}"

    @property
    def key(self) -> str:
        """Returns a text as `Operation.key` does."""
        return f"{self.__name__} {self.wanted} {self.has_tangent} {self.function.key}"

    def __repr__(self) -> str:
        return self.__name__

    def trace(self, targets: Tensors, values: Tensors) -> list[torch.Tensor]:
        """Returns the gradients, computed by one traced node."""
        return _one_node(self, values)

    def __call__(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Returns the gradients; they are differentiable if the grad mode is on."""
        count = len(self.wanted)
        first_tangent = count + len(self.function.saved_results)
        arguments, saved_results, tangents = values[:count], values[count:first_tangent], values[first_tangent:]
        if any(isinstance(value, FakeTensor) for value in values):
            return tuple(torch.empty_like(value) for value, wanted in zip(arguments, self.wanted) if wanted)
        return self._computed(arguments, saved_results, tangents, torch.is_grad_enabled())

    def _computed(
        self, arguments: Sequence[Any], saved_results: Tensors, tangents: Tensors, create_graph: bool
    ) -> tuple[torch.Tensor, ...]:
        """Returns the gradients; they are differentiable if `create_graph`."""
        with torch.enable_grad():
            inputs = [_input(value, wanted) for value, wanted in zip(arguments, self.wanted)]
            edges = [edge for edge, present in zip(self._edges(inputs, saved_results), self.has_tangent) if present]
            sources = [value for value, wanted in zip(inputs, self.wanted) if wanted]
            pairs = [(edge, tangent) for edge, tangent in zip(edges, tangents) if edge is not None]
            targets, tangents = zip(*pairs) if pairs else ((), ())
            gradients = torch.autograd.grad(targets, sources, tangents, create_graph=create_graph, allow_unused=True)
        return tuple(
            torch.zeros_like(value) if gradient is None else gradient if create_graph else _like(value, gradient)
            for value, gradient in zip(sources, gradients)
        )

    def _edges(self, inputs: Sequence[Any], saved_results: Tensors) -> list[GradientEdge | None]:
        """Returns the edges of the results; None for a result without a gradient. `saved_results` replace the
        recomputed results among the saved tensors."""
        cells: list[list[torch.Tensor]] = []

        def pack(value: torch.Tensor) -> list[torch.Tensor]:
            cells.append([value])
            return cells[-1]

        with contextlib.ExitStack() as stack:
            if saved_results and not has_batches(inputs):
                stack.enter_context(saved_tensors_hooks(pack, lambda cell: cell[0]))
            results = self.function(*inputs)
        for i, value in zip(self.function.saved_results, saved_results):
            for cell in cells:
                if cell[0].is_set_to(results[i]):
                    cell[0] = value
        return [get_gradient_edge(result) if result.requires_grad else None for result in results]


class _FallbackOp(torch.autograd.Function):
    """Traces an operation unchanged, and the derivative as a single call."""

    @staticmethod
    def forward(ctx: Any, function: Operation | Gradients, count: int, *values: Any) -> Any:
        targets = values[:count]
        versions = [target._version for target in targets]
        results = function.trace(targets, values[count:])
        # Autograd counts one more write for `mark_dirty`.
        compat.set_versions(targets, [v + n - 1 for v, n in zip(versions, function.written.values())])
        ctx.function = function
        ctx.are_views = [target._is_view() for target in targets]
        ctx.set_materialize_grads(False)
        saved_results = [results[i] for i in function.saved_results]
        ctx.save_for_backward(*saved_results, *[value for value in values[count:] if isinstance(value, torch.Tensor)])
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in values[count:]]
        ctx.mark_dirty(*targets)
        constant: frozenset[int] = getattr(function, "constant", frozenset())
        ctx.mark_non_differentiable(
            *[value for i, value in enumerate(results) if i in constant or not _is_differentiable(value)]
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        count = len(ctx.function.saved_results)
        saved_results = [value.detach() for value in ctx.saved_tensors[:count]]
        saved = iter(ctx.saved_tensors[count:])
        values = [next(saved) if other is None else other for other in ctx.others]
        wanted = ctx.needs_input_grad[-len(values) :]
        present_tangents = [tangent for tangent in tangents if tangent is not None]
        function = Gradients(ctx.function, wanted, tuple(tangent is not None for tangent in tangents))
        gradients = _apply(function, (), [*values, *saved_results, *present_tangents])
        node: Any = gradients[0].grad_fn if gradients else None
        if node is not None:
            node.metadata[EXTRA_EDGES] = [(ctx, i) for i in ctx.function.saved_results]
        remaining = iter(gradients)
        # Without a gradient of a written view, autograd would drop the gradient of the rest of its base.
        written = zip(ctx.function.written, ctx.are_views)
        of_targets = [torch.zeros_like(values[i]) if is_view else None for i, is_view in written]
        return (None, None, *of_targets, *[next(remaining) if wants else None for wants in wanted])


def _one_node(function: Operation | Gradients, values: Sequence[Any]) -> list[torch.Tensor]:
    """Returns the results of `function` for fake values, traced as one node."""
    tracer = _tracer()
    with disable_proxy_modes_tracing():
        results = list(function(*values))
    arguments = tuple(tracer.unwrap_proxy(value) for value in values)
    proxy = tracer.create_proxy("call_function", function, arguments, {})
    track_tensor_tree(results, proxy, constant=None, tracer=tracer)
    return results


def _apply(function: Operation | Gradients, targets: Tensors, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    results: tuple[torch.Tensor, ...] = _FallbackOp.apply(function, len(targets), *targets, *values)  # type: ignore[no-untyped-call]
    return results


def run_as_fallback_op(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs `function(*args, **kwargs)`; in the trace, the derivatives are calls that repeat the run.

    Raises NoFallbackOp if the second run would differ.
    """
    operation = Operation(_with_item if function is operator.setitem else function, args, kwargs)
    operation.analyze()
    tensors, operation.tensors = operation.tensors, []
    values = [value.clone() if i in operation.written else value for i, value in enumerate(tensors)]
    results = _apply(operation, [tensors[i] for i in operation.written], values)
    return _filled(operation.structure, results)


def run_with_numbers(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs `function(*args, **kwargs)`, traced as a single call with the symbolic numbers as arguments.

    The function must not write to tensors, must not draw random numbers, and must return each tensor once.
    """
    operation = Operation(function, args, kwargs, takes_numbers=True)
    tensors, operation.tensors = operation.tensors, []
    numbers, operation.numbers = operation.numbers[::-1], []
    results = _apply(operation, (), [*tensors, *numbers])
    return _filled(operation.structure, results)


def method(name: str) -> Callable[..., Any]:
    """Returns the tensor method of that name as a function."""
    return functools.partial(_call_method, name)


def _call_method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def _with_item(tensor: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    """Assigns to `tensor[key]`, and returns the tensor: autograd wants each written tensor as a result."""
    tensor[key] = value
    return tensor


def _without_writes(function: Any) -> Any:
    """Returns a function that computes the same as an in-place tensor method without the write; None for any other
    function."""
    if not isinstance(function, functools.partial) or function.func is not _call_method:
        return None
    name = function.args[0].removesuffix("_")
    return method(name) if function.args == (f"{name}_",) and hasattr(torch.Tensor, name) else None


def _names_of(function: Any) -> list[str]:
    """Returns the name of a function; for a partial, also the names of the called function and of its arguments."""
    if isinstance(function, functools.partial):
        return [name for part in (function.func, *function.args) for name in _names_of(part)]
    if isinstance(function, OpOverload):
        return [str(function)]
    return [str(getattr(function, "__name__", function))]


class _Slot:
    """A placeholder for a tensor in a structure of arguments or results."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __repr__(self) -> str:
        return f"<{self.position}>"


def _filled(structure: Any, values: Tensors) -> Any:
    return map_aggregate(structure, lambda item: values[item.position] if isinstance(item, _Slot) else item)


def _is_differentiable(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _tracer() -> Any:
    mode = get_proxy_mode()
    assert mode is not None
    return mode.tracer


def _hint(value: Any) -> Any:
    """Returns a symbolic float's value in the call that is compiled for; other values unchanged.

    During tracing tensors have no data, and sizes stay symbols.
    """
    return value.node.hint if isinstance(value, torch.SymFloat) else value


def _input(value: Any, wanted: bool) -> Any:
    """Returns `value` as a separate input, differentiable if `wanted`; a number is returned unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.requires_grad:
        return value.view_as(value)
    return value.detach().requires_grad_(wanted)


def _like(value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Returns `gradient` in the strides that the trace promised."""
    strides = torch.empty_like(value, device="meta").stride()
    return gradient if gradient.stride() == strides else torch.empty_like(value).copy_(gradient)
