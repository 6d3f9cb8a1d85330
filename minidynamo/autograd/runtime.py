"""Owns what happens around the compiled graphs at each call: mutations, aliased outputs, and autograd's bookkeeping.

It decides nothing: a `GraphSignature` says what to do. Every function here takes one list and hands it on, so that no
tensor is held while a graph runs, except inputs that are needed behind it.

Backward is compiled at the first backward call, under a lock: a graph that is never differentiated never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.numbers import dense_strides, has_symbols, hint, is_dense_in
from minidynamo.autograd.signature import GraphSignature, OutputPlan
from minidynamo.boxed import BoxedCallable, mark_boxed
from minidynamo.errors import Diagnostic, GraphRefused, Unsupported
from minidynamo.locks import ForkSafeLock

Saved = Sequence[tuple[str, int]]


def inference_call(signature: GraphSignature, compiled: BoxedCallable, without_grad: bool) -> BoxedCallable:
    """A boxed callable around the inference graph. `without_grad`: the graph must run with the grad mode off, because
    some input requires grad and the user's program switched it off itself."""
    run = _without_grad(compiled) if without_grad else compiled
    settle = _settling(signature)
    if settle is None:
        return _finishing(signature, _with_constants(signature, run))

    return _finishing(signature, _with_constants(signature, lambda args: settle(run(args))))


def training_call(
    signature: GraphSignature,
    forward: BoxedCallable,
    saved: Saved,
    compile_backward: Callable[[], BoxedCallable],
    expected: Sequence[torch.Tensor],
) -> BoxedCallable:
    """A boxed callable around forward and backward graph.

    Forward returns the results of `signature`, then further values to save; `saved` says where each value that
    backward takes comes from. `expected` are fake values like those that backward takes: what was saved, then
    gradients.
    """
    function = _make_function(signature, forward, saved, _Lazy(compile_backward), expected)
    apply = compat.raw_apply(function)
    gradients = signature.gradients
    unreached = [place for place, i in enumerate(gradients) if i in signature.unreached]

    def run(args: list[Any]) -> Any:
        return apply(args, *[args[i] for i in gradients])

    def run_detached(args: list[Any]) -> Any:
        known = [args[i] for i in gradients]
        for place in unreached:
            if not known[place].is_leaf:
                known[place] = None  # autograd would walk into its history without bringing a gradient
        return apply(args, *known)

    return _finishing(signature, _with_constants(signature, run_detached if unreached else run))


def checking_memory(
    written: Collection[int], call: BoxedCallable, make_eager: Callable[[], BoxedCallable]
) -> BoxedCallable:
    """`call`, unless an input in `written` shares memory with another input: then what `make_eager` returns."""
    eager = _Lazy(make_eager)

    def check(args: list[Any]) -> Any:
        places = [arg.untyped_storage()._cdata for arg in args if isinstance(arg, torch.Tensor)]
        if len(set(places)) < len(places) and _is_shared(args, written):
            return eager(args)
        return call(args)

    return mark_boxed(check)


def _is_shared(args: list[Any], written: Collection[int]) -> bool:
    places = [arg.untyped_storage()._cdata if isinstance(arg, torch.Tensor) else None for arg in args]
    return any(places.count(places[i]) > 1 for i in written)


def _make_function(
    signature: GraphSignature,
    forward_graph: BoxedCallable,
    saved: Saved,
    backward_graph: BoxedCallable,
    expected: Sequence[torch.Tensor],
) -> type[torch.autograd.Function]:
    results = signature.results
    differentiable = signature.differentiable_results
    tensors = [kind for kind, like in zip(saved, expected) if not isinstance(like, compat.SYMBOLIC_NUMBERS)]
    saved_inputs = [i for kind, i in tensors if kind == "input"]
    saved_made = [i + results * (kind == "extra") for kind, i in tensors if kind != "input"]
    number_inputs = [i for kind, i in saved[len(tensors) :] if kind == "input"]
    numbers_made = [i + results * (kind == "extra") for kind, i in saved[len(tensors) :] if kind != "input"]
    unreached = set(signature.unreached)
    settle = _settling(signature)
    fits = [_Fit(value) for value in expected[len(saved) :]]
    symbolic = [i for fit, i in zip(fits, differentiable) if fit.is_symbolic]
    others = [i for i in range(results) if i not in differentiable and i not in signature.number_results]

    class CompiledFunction(torch.autograd.Function):
        """One node of autograd's graph for the whole compiled graph. Its first argument is the list of all inputs."""

        # Autograd hands all gradients in in one list and keeps none itself, so they die inside backward as well.
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, args: list[Any], *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            # An input whose history autograd shall not walk into must not be saved together with it.
            kept = [args[i].detach() if i in unreached and not args[i].is_leaf else args[i] for i in saved_inputs]
            numbers = [args[i] for i in number_inputs]
            made = forward_graph(args)
            if settle is not None:
                made = settle(made)
            kept += [made[i] for i in saved_made]
            ctx.save_for_backward(*kept)
            ctx.numbers = numbers + [made[i] for i in numbers_made]
            ctx.shapes = {i: made[i].shape for i in symbolic}
            ctx.set_materialize_grads(False)
            ctx.layouts = [_Layout(value) for value in kept] if compat.has_saved_tensor_hooks() else None
            if others:
                ctx.mark_non_differentiable(*[made[i] for i in others])
            return tuple(made[:results])

        @staticmethod
        def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
            gradients: list[torch.Tensor | None] = given[0] if compat.HAS_BOXED_GRADIENTS else list(given)
            del given
            args = list(ctx.saved_tensors)
            # Unless the user retains the graph, autograd lets go now, and each value dies at its last use.
            ctx.maybe_clear_saved_tensors()
            if ctx.layouts is not None:
                args = [layout.restored(value) for layout, value in zip(ctx.layouts, args)]
            args += ctx.numbers
            unused = {place for place, i in enumerate(differentiable) if gradients[i] is None}
            args += [fit(gradients[i], ctx.shapes.get(i)) for fit, i in zip(fits, differentiable)]
            gradients.clear()
            made = _refuse_second_derivative(backward_graph, args) if torch.is_grad_enabled() else backward_graph(args)
            if unused:
                made = [None if s and unused.issuperset(s) else g for s, g in zip(signature.gradient_sources, made)]
            return (None, *made)

    return CompiledFunction


class _Layout:
    """Shape, strides, dtype and device that a tensor had when it was saved."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape, self.stride = value.shape, value.stride()
        self.dtype, self.device = value.dtype, value.device

    def restored(self, saved: torch.Tensor) -> torch.Tensor:
        """What the user's unpack hook returned for the tensor, which may have lost its dtype or strides."""
        if saved.shape != self.shape:
            came = f"returned a tensor of shape {tuple(saved.shape)} for one of shape {tuple(self.shape)}"
            raise RuntimeError(f"a hook for saved tensors {came}")
        if (saved.stride(), saved.dtype, saved.device) == (self.stride, self.dtype, self.device):
            return saved
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).copy_(saved)


class _Fit:
    """Turns the gradient that autograd hands in for one result into what the backward graph was compiled for.

    `like` is a fake tensor like that. When it has symbolic sizes, its strides follow from those of each call.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self.is_symbolic = has_symbols(like)
        self.order = _dense_order(like) if self.is_symbolic else ()
        self.shape, self.stride = tuple(like.shape), like.stride()
        self.dtype, self.device = like.dtype, like.device

    def __call__(self, gradient: torch.Tensor | None, shape: Sequence[int] | None) -> torch.Tensor:
        if shape is None:
            shape, stride = self.shape, self.stride
        else:
            stride = dense_strides(self.order, shape)
        if gradient is None:  # the result was not used
            return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).zero_()
        if gradient.stride() == stride and not gradient.is_neg():
            return gradient
        return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).copy_(gradient)


def _dense_order(like: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor without gaps, from the innermost to the outermost. Raises GraphRefused for another."""
    sizes, strides = tuple(map(hint, like.shape)), tuple(map(hint, like.stride()))
    order = tuple(sorted(range(like.ndim), key=lambda d: (strides[d], sizes[d], -d)))
    if not is_dense_in(order, like.shape, like.stride()):
        raise GraphRefused(
            Diagnostic(
                "MD401",
                "the graph cannot be traced for autograd: a gradient has strides that do not follow from its sizes",
                why="The sizes differ from call to call, so gradients are laid out anew in each.",
                fix="Return a contiguous tensor: `return x.contiguous()`.",
            )
        )
    return order


class _Lazy:
    """A boxed callable that is compiled when it is called first; afterwards it is one attribute away."""

    _boxed_call = True

    def __init__(self, compile_it: Callable[[], BoxedCallable]) -> None:
        self.compile_it = compile_it
        self.lock = ForkSafeLock()
        self.compiled: BoxedCallable | None = None

    def __call__(self, args: list[Any]) -> Any:
        if self.compiled is None:
            with self.lock:
                if self.compiled is None:
                    self.compiled = self.compile_it()
        return self.compiled(args)


class _NoSecondDerivative(torch.autograd.Function):
    """Passes gradients on, and refuses to be differentiated itself."""

    @staticmethod
    def forward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(
            Diagnostic(
                "MD403",
                "a compiled graph cannot be differentiated twice",
                why="Its backward graph is compiled code that autograd does not see into.",
                fix="Run the function without minidynamo where `create_graph=True` is used: `fn.__wrapped__(...)`.",
            )
        )


def _refuse_second_derivative(backward_graph: BoxedCallable, args: list[Any]) -> list[Any]:
    with torch.no_grad():
        made = list(backward_graph(args))
    present = [i for i, gradient in enumerate(made) if gradient is not None]
    if present:
        apply = compat.raw_apply(_NoSecondDerivative)
        leaves = [made[i].detach().requires_grad_() for i in present]
        for i, gradient in zip(present, apply(*leaves)):
            made[i] = gradient
    return made


def _settling(signature: GraphSignature) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """A function that makes the results, before anything is saved of them, what torch knows them as in eager: as often
    written, and no views of what only the graph has seen."""
    if not signature.result_writes and not signature.no_views:
        return None
    positions, counts = zip(*signature.result_writes) if signature.result_writes else ((), ())

    def settle(made: Sequence[Any]) -> Sequence[Any]:
        settled = list(made)
        for i in signature.no_views:
            settled[i] = made[i].detach()
        compat.set_versions([settled[i] for i in positions], counts)
        return settled

    return settle


def _without_grad(compiled: BoxedCallable) -> BoxedCallable:
    def run(args: list[Any]) -> Any:
        with torch.no_grad():
            return compiled(args)

    return run


def _with_constants(signature: GraphSignature, run: BoxedCallable) -> BoxedCallable:
    constants = signature.constants
    if not constants:
        return run

    def extend(args: list[Any]) -> Any:
        args.extend(constants)
        return run(args)

    return extend


def _finishing(signature: GraphSignature, run: BoxedCallable) -> BoxedCallable:
    """`run`, followed by what only real tensors allow: writing to inputs under autograd, and making views."""
    plain = [OutputPlan("graph", i) for i in range(signature.results)]
    pending = [(m.index, m.result) for m in signature.mutations if m.result is not None]
    counted = {m.index: m.writes for m in signature.mutations if m.writes is not None}
    if not pending and not counted and list(signature.outputs) == plain:
        return run if getattr(run, "_boxed_call", False) else mark_boxed(run)
    from_inputs = {plan.index for plan in signature.outputs if plan.origin == "input"}
    needed = sorted({i for i, _ in pending} | from_inputs | counted.keys())
    place = {index: position for position, index in enumerate(needed)}
    makers = [_maker(plan, place) for plan in signature.outputs]
    writes = [(place[index], result) for index, result in pending]
    counts = [(place[index], writes) for index, writes in counted.items()]

    def call(args: list[Any]) -> Any:
        kept = [args[i] for i in needed]
        versions = [kept[index]._version + count for index, count in counts]
        made = run(args)
        for index, result in writes:
            kept[index].copy_(made[result])
        if versions:  # generated code does not count what it writes
            compat.set_versions([kept[index] for index, _ in counts], versions)
        return tuple([make(kept, made) for make in makers])

    return mark_boxed(call)


def _maker(plan: OutputPlan, place: dict[int, int]) -> Callable[[Any, Any], Any]:
    """A function of the kept inputs and the graph's results that makes one output."""
    if plan.origin == "constant":
        return lambda kept, made: plan.value
    from_input = plan.origin == "input"
    index = place[plan.index] if from_input else plan.index
    if not plan.steps:
        return (lambda kept, made: kept[index]) if from_input else (lambda kept, made: made[index])

    filled = all(step.is_filled for step in plan.steps)

    def view(kept: Any, made: Any) -> Any:
        value = (kept if from_input else made)[index]
        for step in plan.steps:
            value = (step if filled else step.filled(made)).apply(value)
        return value.detach() if plan.detach else value

    return torch.no_grad()(view) if plan.no_grad else view
