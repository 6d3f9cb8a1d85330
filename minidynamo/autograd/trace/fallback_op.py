"""Owns operations whose derivatives look into data: in graphs that are traced without data each derivative is one call.

The call runs the operation under torch's autograd, on what the operation was given, and differentiates it; its own
derivative is a call of the same kind. Which operations are taken that way is found out by `joint.py`. One that takes
numbers which are no constants is a call itself (`scalar_arguments.py` knows which ones).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, track_tensor_tree
from torch.fx.node import map_aggregate

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import ancestors
from minidynamo.autograd.graph.batched_grads import has_batches
from minidynamo.autograd.graph.counting import Counting
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.autograd.graph.recomputation import is_random
from minidynamo.autograd.trace.grad_graph_queries import HANDED_OVER, functions_behind
from minidynamo.compat import FakeTensor, OpOverload
from minidynamo.graph.pytree import tensors_in
from minidynamo.graph.scalar_arguments import key_of_whole
from minidynamo.graph.torch_settings import preserved, restore, settings
from minidynamo.memory.storages import storage_bytes, strided_in

Tensors = Sequence[torch.Tensor]

# Gradient functions that choose a formula by data, and of tensors without data compute each and choose by `where`, or
# take a slower one: infinite values, and derivatives of what was not chosen, may be no numbers, or others than eager's.
CHOOSES_BY_DATA = frozenset({"CumprodBackward0", "ProdBackward0", "ProdBackward1"})
CHOOSES_LATER = CHOOSES_BY_DATA | {"LinalgDetBackward0"}  # for derivatives of gradients

# Gradient functions that raise an error for gradients that have no answer, which they see where there is data alone, by
# the results whose gradients they look at: vectors that are known up to a phase.
REFUSES_BY_DATA = {"LinalgEigBackward0": {1}, "LinalgEighBackward0": {1}, "LinalgSvdBackward0": {0, 2}}


class NotOpaque(Exception):
    """An operation that cannot be run a second time from what it was given."""


class Operation:
    """A call of `function` as a function of the tensors among its arguments, `given`, under the settings of now.

    If it `takes_numbers`, the symbolic `numbers` among its arguments follow behind the tensors, the last one first.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], takes_numbers: bool = False
    ) -> None:
        self.function = function
        self.apart = _apart(function)
        self.takes_numbers = takes_numbers
        self.given: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        self.arguments = map_aggregate((args, kwargs), self._taken)
        self.structure: Any = None
        self.settings = settings()
        self.written: dict[int, int] = {}
        self.unread: frozenset[int] = frozenset()
        self.constant: frozenset[int] = frozenset()
        self.handed: tuple[int, ...] = ()
        self.requires_grad = tuple(value.requires_grad for value in self.given) + (False,) * len(self.numbers)
        self.__name__ = _names(function)[-1]

    @property
    def key(self) -> str:
        """What is the same for operations that compute the same of the same arguments."""
        return repr((key_of_whole(self.function) or _names(self.function), self.arguments, self.settings))

    def __repr__(self) -> str:
        return self.__name__

    def _taken(self, value: Any) -> Any:
        if is_symbolic(value):
            if self.takes_numbers:
                self.numbers.append(value)
                return _Place(-len(self.numbers))
            raise NotOpaque(f"it is given {value}, which differs from call to call")
        if not isinstance(value, torch.Tensor):
            return value
        self.given.append(value)
        return _Place(len(self.given) - 1)

    def run(self, values: Sequence[Any], function: Callable[..., Any] | None = None) -> list[torch.Tensor]:
        """The tensors that it returns for `values`, some of which it may write to; or what `function` does instead."""
        args, kwargs = _filled(self.arguments, values)
        found: list[torch.Tensor] = []

        given = (value for value in values if isinstance(value, torch.Tensor) and self.takes_numbers)
        places = set(map(compat.memory_of, given))

        def taken(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            found.append(value.clone() if places and compat.memory_of(value) in places else value)
            return _Place(len(found) - 1)

        self.structure = map_aggregate((function or self.function)(*args, **kwargs), taken)
        return found

    def examine(self) -> None:
        """Find out what it writes to, and how often, what has no part in what autograd keeps for its derivatives, and
        which results autograd keeps beside what it is given."""
        tracer = _tracer()
        before = set(tracer.graph.nodes)
        saved: list[torch.Tensor] = []

        def pack(value: torch.Tensor) -> torch.Tensor:
            saved.append(value)
            return value

        with torch.enable_grad(), saved_tensors_hooks(pack, lambda value: value):
            own = [_input(value.detach(), _is_differentiable(value)) for value in self.given]
            copies = [value.clone() for value in own]
            made = self.run(copies)
        if any(is_random(node) for node in tracer.graph.nodes if node not in before):
            raise NotOpaque("it draws random numbers")
        self.written = {i: copy._version for i, copy in enumerate(copies) if copy._version}
        if any(isinstance(function, BackwardCFunction) for function in functions_behind(made)):
            return  # it may keep tensors as attributes of its context
        kept = {tracer.unwrap_proxy(value).node for value in saved}
        read = ancestors(kept)
        self.unread = frozenset(i for i, value in enumerate(own) if tracer.unwrap_proxy(value).node not in read)
        settled = self.unread.union(self.written)  # of what it writes to, it keeps a copy
        if all(i in settled or tracer.unwrap_proxy(copy).node in kept for i, copy in enumerate(copies)):
            self.handed = tuple(i for i, value in enumerate(made) if tracer.unwrap_proxy(value).node in kept)

    def trace(self, targets: Tensors, values: Tensors) -> list[torch.Tensor]:
        """What `run` returns while its operations are traced; `targets` are what it writes to."""
        if self.takes_numbers:
            made = _one_node(self, values)
            if len(made) > 1:
                self.constant = self._without_gradients(values)
            return made
        written = dict(zip(self.written, targets))
        return self.run([written.get(i, value) for i, value in enumerate(values)])

    def _without_gradients(self, values: Sequence[Any]) -> frozenset[int]:
        """Which of its results torch takes for constants."""
        inputs = [_input(_plain(value), wanted) for value, wanted in zip(values, self.requires_grad)]
        with disable_proxy_modes_tracing(), torch.enable_grad(), preserved():
            restore(self.settings)
            return frozenset(i for i, made in enumerate(self.run(inputs)) if not made.requires_grad)

    def __call__(self, *values: Any) -> list[torch.Tensor]:
        """What it returns for real tensors, which it leaves as they are."""
        again = torch.is_grad_enabled()
        written = self.written if self.apart is None else {}
        given = [value.clone() if i in written else _plain(value) for i, value in enumerate(values)]
        with preserved():
            restore(self.settings)
            if again or not self.takes_numbers:
                return self.run(given, self.apart)
            # Which kernel torch takes may hang on what requires grad.
            return [made.detach() for made in self.run([*map(_input, given, self.requires_grad)])]


class Gradients:
    """The gradients of `function` by those of its first arguments that are `wanted`, as a function of all its `count`
    arguments, of those of its results that it has `handed` over, and of the gradients of those results that have one
    (`given`). Of the arguments in `unread` only the layout matters."""

    def __init__(self, function: Operation | Gradients, wanted: tuple[bool, ...], given: tuple[bool, ...]) -> None:
        self.function = function
        self.wanted = wanted
        self.given = given
        self.written: dict[int, int] = {}
        self.unread: frozenset[int] = function.unread
        self.handed: tuple[int, ...] = ()
        self.inside = 0
        """The bytes that the call takes beside its arguments and results, as far as that is foreseen."""
        self.__name__: str = f"gradients_of_{function.__name__}"

    @property
    def key(self) -> str:
        """As for an operation."""
        return f"{self.__name__} {self.wanted} {self.given} {self.function.key}"

    def __repr__(self) -> str:
        return self.__name__

    def trace(self, targets: Tensors, values: Tensors) -> list[torch.Tensor]:
        """One node that computes the gradients."""
        self.inside = self._foreseen(values)
        return _one_node(self, values)

    def __call__(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """The gradients, which can be differentiated if the grad mode is on."""
        count = len(self.wanted)
        first = count + len(self.function.handed)
        arguments, handed, gradients = values[:count], values[count:first], values[first:]
        if any(isinstance(value, FakeTensor) for value in values):
            return tuple(torch.empty_like(value) for value, wanted in zip(arguments, self.wanted) if wanted)
        return self._computed(arguments, handed, gradients, torch.is_grad_enabled())

    def _foreseen(self, values: Sequence[Any]) -> int:
        """What `inside` is for values without data. Nothing where sizes vary: it would decide on them."""
        if any(map(is_symbolic, (size for value in tensors_in(values) for size in value.shape))):
            return 0
        first = len(self.wanted) + len(self.function.handed)
        counting = Counting()
        counting.note(strided_in(values), counts=False)
        try:
            with disable_proxy_modes_tracing(), preserved(), counting:
                made = self._computed(
                    values[: len(self.wanted)], values[len(self.wanted) : first], values[first:], False
                )
        except Exception:  # of a function that looks into data
            return 0
        return max(0, counting.peak - sum(storage_bytes(value) for value in strided_in(made)))

    def _computed(
        self, arguments: Sequence[Any], handed: Tensors, gradients: Tensors, again: bool
    ) -> tuple[torch.Tensor, ...]:
        """The gradients, which can be differentiated `again`."""
        with torch.enable_grad():
            inputs = [_input(value, wanted) for value, wanted in zip(arguments, self.wanted)]
            edges = [edge for edge, given in zip(self._results(inputs, handed), self.given) if given]
            sources = [value for value, wanted in zip(inputs, self.wanted) if wanted]
            flows = [(edge, gradient) for edge, gradient in zip(edges, gradients) if edge is not None]
            targets, tangents = zip(*flows) if flows else ((), ())
            found = torch.autograd.grad(targets, sources, tangents, create_graph=again, allow_unused=True)
        return tuple(
            torch.zeros_like(value) if gradient is None else gradient if again else _like(value, gradient)
            for value, gradient in zip(sources, found)
        )

    def _results(self, inputs: Sequence[Any], handed: Tensors) -> list[GradientEdge | None]:
        """Where gradients of the results come in. What was handed over stands for what is made a second time."""
        kept: list[list[torch.Tensor]] = []

        def pack(value: torch.Tensor) -> list[torch.Tensor]:
            kept.append([value])
            return kept[-1]

        with contextlib.ExitStack() as stack:
            if handed and not has_batches(inputs):
                stack.enter_context(saved_tensors_hooks(pack, lambda place: place[0]))
            results = self.function(*inputs)
        for i, value in zip(self.function.handed, handed):
            for place in kept:
                if place[0].is_set_to(results[i]):
                    place[0] = value
        return [get_gradient_edge(made) if made.requires_grad else None for made in results]


class _Opaque(torch.autograd.Function):
    """Traces a function as it is, and its derivative as one call."""

    @staticmethod
    def forward(ctx: Any, function: Operation | Gradients, count: int, *values: Any) -> Any:
        targets = values[:count]
        versions = [target._version for target in targets]
        made = function.trace(targets, values[count:])
        # Autograd counts once more that a function has written to them.
        compat.set_versions(targets, [v + n - 1 for v, n in zip(versions, function.written.values())])
        ctx.function = function
        ctx.set_materialize_grads(False)
        handed = [made[i] for i in function.handed]
        ctx.save_for_backward(*handed, *[value for value in values[count:] if isinstance(value, torch.Tensor)])
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in values[count:]]
        ctx.mark_dirty(*targets)
        constant: frozenset[int] = getattr(function, "constant", frozenset())
        ctx.mark_non_differentiable(
            *[value for i, value in enumerate(made) if i in constant or not _is_differentiable(value)]
        )
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        count = len(ctx.function.handed)
        handed = [value.detach() for value in ctx.saved_tensors[:count]]
        saved = iter(ctx.saved_tensors[count:])
        values = [next(saved) if other is None else other for other in ctx.others]
        wanted = ctx.needs_input_grad[-len(values) :]
        given = [tangent for tangent in tangents if tangent is not None]
        function = Gradients(ctx.function, wanted, tuple(tangent is not None for tangent in tangents))
        made = _applied(function, (), [*values, *handed, *given])
        node: Any = made[0].grad_fn if made else None
        if node is not None:
            node.metadata[HANDED_OVER] = [(ctx, i) for i in ctx.function.handed]
        found = iter(made)
        skipped = (None,) * (len(ctx.needs_input_grad) - len(values))
        return (*skipped, *[next(found) if wants else None for wants in wanted])


def _one_node(function: Operation | Gradients, values: Sequence[Any]) -> list[torch.Tensor]:
    """What `function` makes of fake values, traced as one node."""
    tracer = _tracer()
    with disable_proxy_modes_tracing():
        made = list(function(*values))
    arguments = tuple(tracer.unwrap_proxy(value) for value in values)
    proxy = tracer.create_proxy("call_function", function, arguments, {})
    track_tensor_tree(made, proxy, constant=None, tracer=tracer)
    return made


def _applied(function: Operation | Gradients, targets: Tensors, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    made: tuple[torch.Tensor, ...] = _Opaque.apply(function, len(targets), *targets, *values)  # type: ignore[no-untyped-call]
    return made


def run_opaque(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)`, traced such that its derivatives are calls that run it again.

    Raises NotOpaque when that would not be the same.
    """
    operation = Operation(function, args, kwargs)
    operation.examine()
    given, operation.given = operation.given, []
    values = [value.clone() if i in operation.written else value for i, value in enumerate(given)]
    made = _applied(operation, [given[i] for i in operation.written], values)
    return _filled(operation.structure, made)


def run_with_numbers(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)`, traced as one call that takes the symbolic numbers among the arguments. It must
    write nothing, draw nothing, and return each tensor once."""
    operation = Operation(function, args, kwargs, takes_numbers=True)
    given, operation.given = operation.given, []
    numbers, operation.numbers = operation.numbers[::-1], []
    made = _applied(operation, (), [*given, *numbers])
    return _filled(operation.structure, made)


def method(name: str) -> Callable[..., Any]:
    """The method of that name, as a function."""
    return functools.partial(_call_method, name)


def _call_method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def _apart(function: Any) -> Any:
    """What computes the same as a method that writes to its tensor, and writes nothing; None for anything else."""
    if not isinstance(function, functools.partial) or function.func is not _call_method:
        return None
    name = function.args[0].removesuffix("_")
    return method(name) if function.args == (f"{name}_",) and hasattr(torch.Tensor, name) else None


def _names(function: Any) -> list[str]:
    """The name of a function; of one that calls another one, or the method with some name, both."""
    if isinstance(function, functools.partial):
        return [name for part in (function.func, *function.args) for name in _names(part)]
    if isinstance(function, OpOverload):
        return [str(function)]
    return [str(getattr(function, "__name__", function))]


class _Place:
    """Stands for a tensor in a structure of arguments or results."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __repr__(self) -> str:
        return f"<{self.position}>"


def _filled(structure: Any, values: Tensors) -> Any:
    return map_aggregate(structure, lambda item: values[item.position] if isinstance(item, _Place) else item)


def _is_differentiable(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _tracer() -> Any:
    mode = get_proxy_mode()
    assert mode is not None
    return mode.tracer


def _plain(value: Any) -> Any:
    """A float as it is in the call that is being compiled for, in which no tensor has data; sizes are symbols there."""
    return value.node.hint if isinstance(value, torch.SymFloat) else value


def _input(value: Any, wanted: bool) -> Any:
    """`value` as an input of its own, differentiable if that is `wanted`; a number as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.requires_grad:
        return value.view_as(value)
    return value.detach().requires_grad_(wanted)


def _like(value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """`gradient` in the strides that were promised while tracing."""
    strides = torch.empty_like(value, device="meta").stride()
    return gradient if gradient.stride() == strides else torch.empty_like(value).copy_(gradient)
