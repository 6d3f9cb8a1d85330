"""Owns what happens around the compiled graphs at each call: mutations, aliased outputs, and autograd's bookkeeping.

It decides nothing: a `GraphSignature` says what to do. Every function here takes one list and hands it on, so that no
tensor is held while a graph runs, except inputs that are needed behind it.

How the compiled backward is called, and when it is compiled, is in `backward_call.py`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.batched_grads import has_batches
from minidynamo.autograd.graph.layouts import Layout
from minidynamo.autograd.graph.signature import GraphSignature, OutputPlan
from minidynamo.autograd.partition.packing import Unpack
from minidynamo.autograd.runtime.accumulation import not_asked_for
from minidynamo.autograd.runtime.backward_call import BackwardCall, Lazy, Parts
from minidynamo.autograd.runtime.double_backward import DoubleBackward
from minidynamo.autograd.runtime.input_nodes import Apart, Compute, Links, Ways, in_order, without_data
from minidynamo.autograd.runtime.partial_backward import Part
from minidynamo.autograd.runtime.rebuild_outputs import Found, maker, watching
from minidynamo.autograd.runtime.result_hooks import watch_view
from minidynamo.autograd.runtime.result_nodes import Arriving, Chains, has_chains, noting, watch_of, watched
from minidynamo.autograd.runtime.saved_per_result import SavedPerResult, received
from minidynamo.graph.boxed import BoxedCallable, is_boxed, mark_boxed
from minidynamo.graph.saved_tensor_hooks import before_saving
from minidynamo.graph.tensor_hooks import renew_node

Saved = Sequence[tuple[str, int]]


def inference_call(signature: GraphSignature, compiled: BoxedCallable, without_grad: bool) -> BoxedCallable:
    """A boxed callable around the inference graph. `without_grad`: the graph must run with the grad mode off, because
    some input requires grad and the user's program switched it off itself."""
    run = _without_grad(compiled) if without_grad else compiled
    return _finishing(signature, _with_constants(signature, _settling(signature, run)))


def training_call(
    signature: GraphSignature,
    forward: BoxedCallable,
    saved: Saved,
    compile_backward: Callable[[Part], BoxedCallable | None],
    expected: Sequence[torch.Tensor],
    again: DoubleBackward,
    unpack: Unpack | None = None,
) -> BoxedCallable:
    """A boxed callable around forward and backward graph.

    Forward returns the results of `signature`, then further values to save; `saved` says where each value that
    backward takes comes from. `expected` are fake values like those that backward takes: what was saved, then
    gradients. `again` is for callers who differentiate the gradients; `unpack` gives what that takes, if it was packed.
    """
    kept_for, differentiable = signature.kept_for, signature.differentiable_results
    held_for = dict(zip(again.plan.held, again.plan.held_for))
    holders = SavedPerResult(kept_for, differentiable, signature.used_up, held_for) if kept_for else None
    run_backward = BackwardCall(signature, Parts(compile_backward), expected[len(saved) :])
    places = _Places(saved, expected, signature.results)
    gradients_of = _gradients_of(signature, places, run_backward, again, holders, unpack)
    function = _make_function(
        signature, _settling(signature, forward, counted=True), places, run_backward, again, holders, gradients_of
    )
    leading = [tuple(differentiable[i] for i in places) for places in signature.ways]
    apply = compat.raw_apply(function) if holders is None else _joining(holders, function)
    ways = Ways(leading, len(differentiable), signature.results, apply, gradients_of, signature.edges)
    if len(differentiable) > 1 or signature.saved_results or signature.unvisited:
        watched(function)
    chains = Chains(signature, _arriving(signature, holders, run_backward)) if has_chains(signature) else None
    gradients = signature.gradients
    reached = {i for i in gradients if i not in signature.unreached or i in again.plan.linked}

    def run(args: list[Any]) -> Any:
        return ways.call(args, [args[i] for i in gradients])

    def run_detached(args: list[Any]) -> Any:
        # Autograd would walk into the history of the others without bringing a gradient.
        return ways.call(args, [args[i] if i in reached or args[i].is_leaf else None for i in gradients])

    call: BoxedCallable = run if reached.issuperset(gradients) else run_detached
    if chains is None and signature.saved_results:
        call = noting(call, signature)
    return _finishing(signature, _with_constants(signature, _counting_before(signature, call)), chains)


def _joining(holders: SavedPerResult, function: type[torch.autograd.Function]) -> Callable[..., Any]:
    apply = compat.raw_apply(function)
    return lambda args, *links: holders.joined(apply(args, *links), args)


def checking_inputs(
    signature: GraphSignature, examples: Sequence[Any], call: BoxedCallable, make_eager: Callable[[], BoxedCallable]
) -> BoxedCallable:
    """`call`, for values like `examples`, unless an input that it writes to shares memory with another input, or is one
    of two that autograd takes for views of one tensor (`view.data = other` leaves it at that), or is a view that is
    watched, or of which another view is returned: what eager shows of it hangs on which views were written to, and
    which were made before that. Then it is what `make_eager` returns."""
    eager = Lazy(make_eager)
    written = {mutation.index for mutation in signature.mutations}
    tensors_of = _taking(i for i, example in enumerate(examples) if isinstance(example, torch.Tensor))
    written_of, others_of = _taking(sorted(written)), _taking(i for i in range(len(examples)) if i not in written)
    made = [plan for plan in (*signature.views, *signature.outputs) if plan.steps or plan.detach]
    returned = {index for origin, index in map(signature.origin, made) if origin == "input"}
    with_history = [(m.index, m.index in returned) for m in signature.mutations if m.result is not None]

    def check(args: list[Any]) -> Any:
        if compat.have_memory_in_common(written_of(args), others_of(args)):
            return eager(args)
        if any(map(compat.is_view, tensors_of(args))) and _have_a_base_in_common(args, written):
            return eager(args)
        for i, is_returned in with_history:
            if args[i]._is_view() and (is_returned or args[i]._backward_hooks or args[i].retains_grad):
                return eager(args)
        return call(args)

    return mark_boxed(check)


def _taking(positions: Iterable[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the items at these positions."""
    positions = list(positions)
    return operator.itemgetter(*positions) if len(positions) > 1 else lambda items: [items[i] for i in positions]


def _have_a_base_in_common(args: list[Any], written: Collection[int]) -> bool:
    """Whether autograd takes an argument that is written to, and another one, for views of one tensor."""
    bases = [_base_of(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
    return any(bases.count(bases[i]) > 1 for i in written)


def _base_of(tensor: torch.Tensor) -> int:
    """What tells the tensor that autograd takes it for a view of, or itself."""
    return id(tensor._base if tensor._is_view() else tensor)


class _Places:
    """Where the values that backward takes are found in forward: among its inputs, and among what it made."""

    def __init__(self, saved: Saved, expected: Sequence[Any], results: int) -> None:
        symbols = [isinstance(like, (str, *compat.SYMBOLIC_NUMBERS)) for like in expected[: len(saved)]]  # or NUMBER
        tensors = [place for place, number in zip(saved, symbols) if not number]
        numbers = [place for place, number in zip(saved, symbols) if number]
        self.inputs, self.made = _split(tensors, results)
        self.number_inputs, self.numbers_made = _split(numbers, results)


def _split(places: Saved, results: int) -> tuple[list[int], list[int]]:
    made = [i + results * (kind == "extra") for kind, i in places if kind != "input"]
    return [i for kind, i in places if kind == "input"], made


def _gradients_of(
    signature: GraphSignature,
    places: _Places,
    run_backward: BackwardCall,
    again: DoubleBackward,
    holders: SavedPerResult | None,
    unpack: Unpack | None,
) -> Compute:
    """The backward of a graph: what gives, for its node and what came in there, which is given up, the gradients."""
    runs_once = bool(signature.runs_once or places.inputs or places.made or again.plan.held or again.plan.random)
    saved_for = _saving(signature.used_up, holders, again, runs_once)

    def gradients_of(ctx: Any, given: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        if signature.all_gradients:
            compat.check_reentrant_backward()
        tangents = run_backward.tangents(ctx, given)
        if all(tangent is None for tangent in tangents):
            return (None,) * len(signature.gradients)  # autograd comes by on the way to what it is asked for
        kept = ctx.again and ctx.again.taken()
        args = saved_for(ctx, tangents)
        if ctx.apart is not None:
            kept = replace(kept, links=ctx.apart.completed(kept.links))
        unwanted = not_asked_for(ctx, kept.links)
        if torch.is_grad_enabled() or has_batches(tangents):
            compiled, watch = run_backward.keeping(ctx, tuple(args), unwanted), watch_of(ctx, signature)
            saved = args if unpack is None else unpack(args, ctx.numbers)
            return again.gradients(kept, saved, tangents, compiled, watch)
        links, kept = kept.links, None
        return run_backward(ctx, args, tangents, unwanted, links)

    return gradients_of


def _make_function(
    signature: GraphSignature,
    forward_graph: BoxedCallable,
    places: _Places,
    run_backward: BackwardCall,
    again: DoubleBackward,
    holders: SavedPerResult | None,
    gradients_of: Compute,
) -> type[torch.autograd.Function]:
    results, differentiable, unreached = signature.results, signature.differentiable_results, {*signature.unreached}
    others = [i for i in range(results) if i not in differentiable and i not in signature.number_results]
    ordered, unvisited = in_order(signature.edges), signature.unvisited

    class CompiledFunction(torch.autograd.Function):
        """One node of autograd's graph for the whole compiled graph. Its first argument is the list of all inputs; what
        autograd sees are links to those that require grad, so that the inputs themselves can die in forward. The second
        has the links to all, and who holds those that lie apart (`input_nodes.py`)."""

        # Autograd hands all gradients in in one list and keeps none itself, so they die inside backward as well.
        boxed_grads_call = True

        @staticmethod
        def forward(
            ctx: Any, args: list[Any], known: tuple[Apart | None, Links], *_: torch.Tensor | None
        ) -> tuple[torch.Tensor, ...]:
            # An input whose history autograd shall not walk into must not be saved together with it.
            kept = [args[i].detach() if i in unreached and not args[i].is_leaf else args[i] for i in places.inputs]
            numbers = [args[i] for i in places.number_inputs]
            hooked = compat.has_saved_tensor_hooks()
            ctx.signature = signature
            ctx.apart, links = known
            ctx.again = again.keep(args, links, hooked)
            if ctx.apart is not None:
                ctx.apart.let_go(ctx.again.links)
            ctx.like = {place: without_data(args[signature.gradients[place]]) for place, _ in signature.zeros_from}
            ctx.unvisited = [leaf for leaf in map(links.__getitem__, unvisited) if leaf is not None and leaf.is_leaf]
            with before_saving:
                made = forward_graph(args)
            kept += [made[i] for i in places.made]
            returned = list(made[:results])
            ctx.layouts = [Layout(value) for value in kept] if hooked else None
            ctx.save_for_backward(*(holders.set_apart(ctx, kept, returned, args) if holders else kept))
            ctx.numbers = numbers + [made[i] for i in places.numbers_made]
            ctx.shapes = {i: made[i].shape for i in run_backward.symbolic}
            ctx.set_materialize_grads(False)
            if others:
                ctx.mark_non_differentiable(*[made[i] for i in others])
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
            gradients = received(given)
            del given
            if ctx.apart is not None:
                ctx.apart.begin()
            made = gradients_of(ctx, gradients)
            return (None, None, *ordered(made if ctx.apart is None else ctx.apart.left(made)), None)

    return CompiledFunction


def _saving(
    used_up: Sequence[tuple[int, ...]], holders: SavedPerResult | None, again: DoubleBackward, runs_once: bool
) -> Callable[[Any, Sequence[torch.Tensor | None]], list[Any]]:
    """What gives a call of backward, with its node and tangents, what was saved for it."""
    if not runs_once:
        return lambda ctx, tangents: []
    return functools.partial(_saved_apart, used_up, holders, again) if used_up else functools.partial(_saved, holders)


def _saved(holders: SavedPerResult | None, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> list[Any]:
    """What was saved; raises the second time. Unless the user retains the graph, autograd lets go now, and each value
    dies at its last use. None for what only results need for which no gradient comes in."""
    saved = list(ctx.saved_tensors)
    ctx.maybe_clear_saved_tensors()
    if not compat.retains_graph():
        ctx.again.clear()
        ctx.again = None
    return _gathered(holders, ctx, saved, tangents)


def _saved_apart(
    used_up: Sequence[tuple[int, ...]],
    holders: SavedPerResult | None,
    again: DoubleBackward,
    ctx: Any,
    tangents: Sequence[torch.Tensor | None],
) -> list[Any]:
    """The same where all that is saved lies in holders: raises if a gradient comes in for a result that was used up."""
    used = [place for place, tangent in enumerate(tangents) if tangent is not None]
    gone: frozenset[int] = getattr(ctx, "used_up", frozenset())
    if not gone.isdisjoint(used):
        return list(ctx.saved_tensors)  # autograd has let go of the node, and raises
    if not compat.retains_graph():
        ctx.used_up = gone = gone.union(*(used_up[place] for place in used))
        ctx.again = None if len(gone) == len(used_up) else again.let_go(ctx.again, gone)
    return _gathered(holders, ctx, [], tangents, gone)


def _arriving(signature: GraphSignature, holders: SavedPerResult | None, run_backward: BackwardCall) -> Arriving:
    """What computes, given the node of a call, the gradients that arrive at results from another. The node goes on to
    keep what was saved."""

    def arriving(ctx: Any, place: int, gradient: torch.Tensor) -> Sequence[torch.Tensor | None]:
        tangents = [gradient if i == place else None for i in range(len(signature.differentiable_results))]
        args = _looked_up(signature.used_up, holders, ctx, tangents) if signature.saved else []
        return run_backward.arriving(ctx, args, run_backward.of_their_kinds(tangents))

    return arriving


def _looked_up(
    used_up: Sequence[tuple[int, ...]],
    holders: SavedPerResult | None,
    ctx: Any,
    tangents: Sequence[torch.Tensor | None],
) -> list[Any]:
    """What was saved, for a call behind which backward still runs; raises if that does."""
    used = [place for place, tangent in enumerate(tangents) if tangent is not None]
    is_gone = not getattr(ctx, "used_up", frozenset()).isdisjoint(used)
    saved = list(ctx.saved_tensors) if is_gone or not used_up else []
    return _gathered(holders, ctx, saved, tangents, ())


def _gathered(
    holders: SavedPerResult | None,
    ctx: Any,
    saved: list[Any],
    tangents: Sequence[torch.Tensor | None],
    gone: Collection[int] | None = None,
) -> list[Any]:
    if holders is not None:
        saved = holders.gathered(ctx, saved, tangents, gone)
    if ctx.layouts is not None:
        return [value if value is None else fit.restored(value) for fit, value in zip(ctx.layouts, saved)]
    return saved


def _inside(signature: GraphSignature) -> list[tuple[int, int]]:
    """The inputs that the graph itself writes to, each with how often eager counts it as written."""
    inside = [m for m in signature.mutations if m.result is None or m.in_place]
    return [(m.index, m.writes) for m in inside if m.writes is not None]


def _counting_before(signature: GraphSignature, call: BoxedCallable) -> BoxedCallable:
    """`call`, with the inputs that the graph itself writes to counted as written before autograd joins it to their
    nodes, which torch makes anew for views: hooks that come later are on those."""
    inputs = _inside(signature)

    def counted(args: list[Any]) -> Any:
        written = [args[i] for i, _ in inputs]
        _count(written, [args[i]._version + count for i, count in inputs])
        del written
        return call(args)

    return counted if inputs else call


def _settling(signature: GraphSignature, graph: BoxedCallable, *, counted: bool = False) -> BoxedCallable:
    """`graph`, whose results, and the inputs that it writes to, torch knows, before anything is saved of them, as what
    they are in eager: as often written, and no views of what only the graph has seen. Results that lie in inputs are
    those, as far as data goes. Inputs may be `counted` before."""
    inputs = [(i, 0 if counted else count) for i, count in _inside(signature)]
    uncounted = [] if torch.is_inference_mode_enabled() else [m.index for m in signature.mutations if m.writes is None]
    in_place = sorted((m.result, m.index) for m in signature.mutations if m.in_place and m.result is not None)
    if not any((signature.result_writes, signature.no_views, signature.result_strides, inputs, uncounted)):
        return graph
    positions, counts = zip(*signature.result_writes) if signature.result_writes else ((), ())

    def settled(args: list[Any]) -> list[Any]:
        for i in uncounted:  # the program writes to their `.data`: torch refuses writes to them and their views
            args[i] = args[i].new_empty(0).set_(args[i])
        written, versions = _counted((args[i], count) for i, count in inputs)
        holding = [(position, args[i].detach()) for position, i in in_place]
        made = list(graph(args))
        for position, data in holding:
            made.insert(position, data)
        for i in signature.no_views:
            made[i] = made[i].detach()
        for i, strides in signature.result_strides:
            made[i] = made[i].as_strided(made[i].shape, strides).detach()
        compat.set_versions([*written, *(made[i] for i in positions)], [*versions, *counts])
        return made

    return settled


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


def _finishing(signature: GraphSignature, run: BoxedCallable, chains: Chains | None = None) -> BoxedCallable:
    """`run`, followed by what only real tensors allow: writing to inputs under autograd, making views, and telling
    autograd by `chains` what is computed from what."""
    plain = [OutputPlan("graph", i) for i in range(signature.results)]
    pending = [(m.index, m.result) for m in signature.mutations if m.result is not None]
    counted = {m.index: m.writes for m in signature.mutations if m.writes is not None and m.result is not None}
    if not pending and not counted and list(signature.outputs) == plain and chains is None:
        return run if is_boxed(run) else mark_boxed(run)
    from_inputs = {i for origin, i in map(signature.origin, signature.outputs) if origin == "input"}
    needed = sorted({i for i, _ in pending} | from_inputs | counted.keys())
    place = {index: position for position, index in enumerate(needed)}
    apart = signature.results_apart
    makers = [watching(maker(plan, place), *signature.origin(plan), apart) for plan in signature.outputs]
    view_makers = [maker(plan, place) for plan in signature.views]
    writes = [(place[index], result) for index, result in pending]
    counts = [(place[index], writes) for index, writes in counted.items()]
    early = [i for i, plan in enumerate(signature.outputs) if plan.early and chains is None]

    def call(args: list[Any]) -> Any:
        kept = [args[i] for i in needed]
        if early:
            found = Found(kept, (), view_makers)
            viewed = {i: makers[i](found) for i in early}
            found.made = run(args)
            return tuple([viewed[i] if i in viewed else make(found) for i, make in enumerate(makers)])
        written, versions = _counted((kept[index], count) for index, count in counts)
        made = run(args)
        if chains is not None:
            return chained(chains, kept, list(made), dict(zip(map(id, written), versions)))
        for index, result in writes:
            _write(kept[index], made[result])
            if result in apart:
                watch_view(kept[index], made[result])
        if versions:
            _count(written, versions)
        found = Found(kept, made, view_makers)
        return tuple([make(found) for make in makers])

    def chained(chains: Chains, kept: list[Any], made: list[Any], versions: dict[int, int]) -> Any:
        def write(target: torch.Tensor, value: torch.Tensor) -> None:
            _write(target, value)
            if id(target) in versions:  # before views are made, which hang on it
                _count([target], [versions[id(target)]])
            if apart:
                watch_view(target, value)

        found = Found(kept, made, view_makers)
        views = chains.join(made, [kept[index] for index, _ in writes], lambda i: makers[i](found), write)
        return tuple([views[i] if i in views else make(found) for i, make in enumerate(makers)])

    return mark_boxed(call)


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write to an input under autograd. What gradients flow into its history is the graph's business, which has taken
    it: from the copy would come zeros."""
    own = not (target.is_leaf or target._is_view() or target.retains_grad or target._backward_hooks)
    if own and value.requires_grad and torch.is_grad_enabled():
        target.detach_()
    target.copy_(value)
    renew_node(target)


def _counted(writes: Iterable[tuple[torch.Tensor, int]]) -> tuple[list[torch.Tensor], list[int]]:
    """Inputs with how often torch will count them as written. In inference mode, what was made there and has other
    `.data` may be written to, and counts nothing."""
    writes = [*writes]
    if torch.is_inference_mode_enabled():
        writes = [(value, count) for value, count in writes if compat.version_of(value) is not None]
    return [value for value, _ in writes], [value._version + count for value, count in writes]


def _count(written: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Have torch count inputs as written as often as in eager."""
    compat.set_versions(written, versions)
    for value in written:
        renew_node(value)
