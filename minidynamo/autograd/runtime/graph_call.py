"""Owns each call of the compiled graphs: mutations of inputs, aliased outputs, and autograd's bookkeeping.

A `GraphSignature` contains all decisions. Every function takes one list and passes the same list to the next callee, so
no caller holds a tensor while a graph runs, except inputs needed after the graph.

`backward_call.py` calls the compiled backward and compiles it on the first call.

Words of this folder: a *result* is a value returned by the compiled graph, an *output* is a value returned by the
user's function. An `index` of a result is its index in `NodeGraph.nodes` (a target), a
`position` counts all results. The *graph's node* is the autograd node of the whole graph.
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
from minidynamo.autograd.runtime.accumulation import unwanted_gradients
from minidynamo.autograd.runtime.backward_call import BackwardCall, BackwardGraphs, CompiledOnFirstCall
from minidynamo.autograd.runtime.double_backward import DoubleBackward
from minidynamo.autograd.runtime.input_nodes import Compute, InputNodes, Links, SeparateInputs, without_data
from minidynamo.autograd.runtime.partial_backward import BackwardPart
from minidynamo.autograd.runtime.rebuild_outputs import CallValues, output_builder, watching_hooks
from minidynamo.autograd.runtime.result_hooks import watch_view
from minidynamo.autograd.runtime.result_nodes import (
    FlowOf,
    ResultNodes,
    has_result_nodes,
    recording_saved_results,
    watch_for,
    watched,
)
from minidynamo.autograd.runtime.saved_per_result import SavedPerResult, received
from minidynamo.graph.boxed import BoxedCallable, is_boxed, mark_boxed
from minidynamo.graph.saved_tensor_hooks import before_saving
from minidynamo.graph.tensor_hooks import refresh_grad_fn

Saved = Sequence[tuple[str, int]]


def inference_call(signature: GraphSignature, compiled: BoxedCallable, without_grad: bool) -> BoxedCallable:
    """Builds a boxed callable around the inference graph.

    `without_grad`: run the graph with the grad mode off, because an input requires grad and the user's program switched
    the grad mode off itself.
    """
    run = _without_grad(compiled) if without_grad else compiled
    return _with_user_outputs(signature, _with_constants(signature, _with_eager_metadata(signature, run)))


def training_call(
    signature: GraphSignature,
    forward: BoxedCallable,
    saved: Saved,
    compile_backward: Callable[[BackwardPart], BoxedCallable | None],
    expected: Sequence[torch.Tensor],
    double_backward: DoubleBackward,
    unpack: Unpack | None = None,
) -> BoxedCallable:
    """Builds a boxed callable around the forward and the backward graph.

    Forward returns the results of `signature`, then further values to save. `saved[k]` is the origin of argument k of
    backward: ("input", index), ("result", position) or ("extra", number). `expected` has fake values for all arguments
    of backward: saved values, then gradients. `double_backward` serves callers differentiating the gradients; `unpack`
    restores packed tensors for such callers.
    """
    graph, differentiable = signature.graph, signature.graph.positions
    held_for = dict(zip(double_backward.plan.held, double_backward.plan.held_for))
    freed_with = tuple(target.frees for target in graph.targets) if graph.frees_in_parts else ()
    saved_per_result = SavedPerResult(graph.readers, differentiable, freed_with, held_for) if graph.readers else None
    run_backward = BackwardCall(signature, BackwardGraphs(compile_backward), expected[len(saved) :])
    saved_positions = _SavedPositions(saved, expected, signature.results)
    gradients_of = _gradients_of(signature, saved_positions, run_backward, double_backward, saved_per_result, unpack)
    function = _make_function(
        signature,
        _with_eager_metadata(signature, forward, counted=True),
        saved_positions,
        run_backward,
        double_backward,
        saved_per_result,
        gradients_of,
    )
    reaching = [tuple(differentiable[i] for i in edge.reached_from) for edge in graph.edges]
    apply = compat.raw_apply(function) if saved_per_result is None else _with_result_nodes(saved_per_result, function)
    input_nodes = InputNodes(reaching, len(differentiable), signature.results, apply, gradients_of)
    saves = any(node.is_saved for node in graph.nodes)
    if len(differentiable) > 1 or saves or not all(edge.reached_from for edge in graph.edges):
        watched(function)
    result_nodes = (
        ResultNodes(signature, _make_flow_of(signature, saved_per_result, run_backward))
        if has_result_nodes(signature)
        else None
    )
    gradients = graph.inputs
    reached = {edge.input for edge in graph.edges if edge.has_gradient or edge.input in double_backward.plan.linked}

    def run(args: list[Any]) -> Any:
        return input_nodes.call(args, [args[i] for i in gradients])

    def run_detached(args: list[Any]) -> Any:
        # Autograd would enter the history of the other inputs without a gradient.
        return input_nodes.call(args, [args[i] if i in reached or args[i].is_leaf else None for i in gradients])

    call: BoxedCallable = run if reached.issuperset(gradients) else run_detached
    if result_nodes is None and saves:
        call = recording_saved_results(call, signature)
    return _with_user_outputs(
        signature, _with_constants(signature, _counting_writes_first(signature, call)), result_nodes
    )


def _with_result_nodes(saved_per_result: SavedPerResult, function: type[torch.autograd.Function]) -> Callable[..., Any]:
    apply = compat.raw_apply(function)
    return lambda args, *links: saved_per_result.attach_nodes(apply(args, *links), args)


def checking_inputs(
    signature: GraphSignature, examples: Sequence[Any], call: BoxedCallable, make_eager: Callable[[], BoxedCallable]
) -> BoxedCallable:
    """Wraps `call`, which was compiled for inputs like `examples`, and calls the result of `make_eager` instead if

    - a written input shares memory with another input,
    - autograd takes a written input and another input for views of one tensor, as after `view.data = tensor`, or
    - a written input is a view that is watched, or of which the program returns a further view. The history of such a
      view in eager depends on which views were written to, and on which existed before the write.
    """
    eager = CompiledOnFirstCall(make_eager)
    written = {mutation.index for mutation in signature.mutations}
    tensors_of = _getter(i for i, example in enumerate(examples) if isinstance(example, torch.Tensor))
    written_of, others_of = _getter(sorted(written)), _getter(i for i in range(len(examples)) if i not in written)
    view_plans = [plan for plan in (*signature.views, *signature.outputs) if plan.steps or plan.detach]
    returned = {index for origin, index in map(signature.origin, view_plans) if origin == "input"}
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


def _getter(positions: Iterable[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Builds a getter of the items at these positions."""
    positions = list(positions)
    return operator.itemgetter(*positions) if len(positions) > 1 else lambda items: [items[i] for i in positions]


def _have_a_base_in_common(args: list[Any], written: Collection[int]) -> bool:
    """Returns whether autograd takes a written argument and another argument for views of one tensor."""
    bases = [_base_id(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
    return any(bases.count(bases[i]) > 1 for i in written)


def _base_id(tensor: torch.Tensor) -> int:
    """Returns the id of the tensor's base, or the id of a tensor without base."""
    return id(tensor._base if tensor._is_view() else tensor)


class _SavedPositions:
    """Positions of the arguments of backward: `inputs` and `number_inputs` among forward's inputs, `computed` and
    `computed_numbers` among the values returned by forward. Numbers are apart, since autograd saves tensors only."""

    def __init__(self, saved: Saved, expected: Sequence[Any], results: int) -> None:
        symbols = [isinstance(like, (str, *compat.SYMBOLIC_NUMBERS)) for like in expected[: len(saved)]]  # or NUMBER
        tensors = [source for source, is_number in zip(saved, symbols) if not is_number]
        numbers = [source for source, is_number in zip(saved, symbols) if is_number]
        self.inputs, self.computed = _split(tensors, results)
        self.number_inputs, self.computed_numbers = _split(numbers, results)


def _split(sources: Saved, results: int) -> tuple[list[int], list[int]]:
    computed = [i + results * (kind == "extra") for kind, i in sources if kind != "input"]
    return [i for kind, i in sources if kind == "input"], computed


def _gradients_of(
    signature: GraphSignature,
    saved_positions: _SavedPositions,
    run_backward: BackwardCall,
    double_backward: DoubleBackward,
    saved_per_result: SavedPerResult | None,
    unpack: Unpack | None,
) -> Compute:
    """Builds `backward(ctx, given) -> gradients of the inputs`, for the graph's node. Empties `given`."""
    runs_once = bool(
        any(node.frees for node in signature.graph.nodes)
        or saved_positions.inputs
        or saved_positions.computed
        or double_backward.plan.held
        or double_backward.plan.random
    )
    graph = signature.graph
    freed_with = tuple(target.frees for target in graph.targets) if graph.frees_in_parts else ()
    read_saved = _make_saved_reader(freed_with, saved_per_result, double_backward, runs_once)

    def gradients_of(ctx: Any, given: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        if signature.all_gradients:
            compat.check_reentrant_backward()
        tangents = run_backward.tangents(ctx, given)
        if all(tangent is None for tangent in tangents):
            return (None,) * len(signature.graph.edges)  # autograd visits the node for the sake of a later one
        kept = ctx.double_backward and ctx.double_backward.with_boxed()
        args = read_saved(ctx, tangents)
        if ctx.separate is not None:
            kept = replace(kept, links=ctx.separate.with_released_links(kept.links))
        unwanted = unwanted_gradients(ctx, kept.links)
        if torch.is_grad_enabled() or has_batches(tangents):
            compiled, watch = run_backward.reusable(ctx, tuple(args), unwanted), watch_for(ctx, signature)
            saved = args if unpack is None else unpack(args, ctx.numbers)
            return double_backward.gradients(kept, saved, tangents, compiled, watch)
        links, kept = kept.links, None
        return run_backward(ctx, args, tangents, unwanted, links)

    return gradients_of


def _saved_input(value: torch.Tensor, is_unreached: bool) -> torch.Tensor:
    """Returns `value`, detached if autograd must not enter its history."""
    return value.detach() if is_unreached and not value.is_leaf else value


def _make_function(
    signature: GraphSignature,
    forward_graph: BoxedCallable,
    saved_positions: _SavedPositions,
    run_backward: BackwardCall,
    double_backward: DoubleBackward,
    saved_per_result: SavedPerResult | None,
    gradients_of: Compute,
) -> type[torch.autograd.Function]:
    results, graph = signature.results, signature.graph
    unreached = {edge.input for edge in graph.edges if not edge.has_gradient}
    others = [i for i in range(results) if i not in graph.positions and i not in signature.number_results]
    edges = [*enumerate(graph.edges)]
    zeros, unvisited = [(k, e.input) for k, e in edges if e.zero_sources], [k for k, e in edges if not e.reached_from]

    class CompiledFunction(torch.autograd.Function):
        """The one node of autograd's graph for the whole compiled graph.

        Arguments of `apply`: the list of all inputs; a pair of the separate inputs, or None, and the links to all
        inputs; the links of inputs with grad. Links have no data, so inputs can die in forward (`input_nodes.py`).
        """

        # Autograd passes all gradients in one list and keeps none, so gradients die inside backward.
        boxed_grads_call = True

        @staticmethod
        def forward(
            ctx: Any, args: list[Any], known: tuple[SeparateInputs | None, Links], *_: torch.Tensor | None
        ) -> tuple[torch.Tensor, ...]:
            kept = [_saved_input(args[i], is_unreached=i in unreached) for i in saved_positions.inputs]
            numbers = [args[i] for i in saved_positions.number_inputs]
            hooked = compat.has_saved_tensor_hooks()
            ctx.signature = signature
            ctx.separate, links = known
            ctx.double_backward = double_backward.keep(args, links, hooked)
            if ctx.separate is not None:
                ctx.separate.release(ctx.double_backward.links)
            ctx.zero_templates = {k: without_data(args[i]) for k, i in zeros}
            ctx.unvisited = [leaf for leaf in map(links.__getitem__, unvisited) if leaf is not None and leaf.is_leaf]
            with before_saving:
                values = forward_graph(args)
            kept += [values[i] for i in saved_positions.computed]
            returned = list(values[:results])
            ctx.layouts = [Layout(value) for value in kept] if hooked else None
            ctx.save_for_backward(*(saved_per_result.store(ctx, kept, returned, args) if saved_per_result else kept))
            ctx.numbers = numbers + [values[i] for i in saved_positions.computed_numbers]
            ctx.shapes = {i: values[i].shape for i in run_backward.symbolic}
            ctx.set_materialize_grads(False)
            if others:
                ctx.mark_non_differentiable(*[values[i] for i in others])
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
            gradients = received(given)
            del given
            if ctx.separate is not None:
                ctx.separate.begin()
            found = gradients_of(ctx, gradients)
            return (None, None, *(found if ctx.separate is None else ctx.separate.hold_back(found)), None)

    return CompiledFunction


def _make_saved_reader(
    freed_with: Sequence[tuple[int, ...]],
    saved_per_result: SavedPerResult | None,
    double_backward: DoubleBackward,
    runs_once: bool,
) -> Callable[[Any, Sequence[torch.Tensor | None]], list[Any]]:
    """Builds `read(ctx, tangents) -> saved values` for a call of backward."""
    if not runs_once:
        return lambda ctx, tangents: []
    return (
        functools.partial(_take_saved_per_result, freed_with, saved_per_result, double_backward)
        if freed_with
        else functools.partial(_take_saved, saved_per_result)
    )


def _take_saved(
    saved_per_result: SavedPerResult | None, ctx: Any, tangents: Sequence[torch.Tensor | None]
) -> list[Any]:
    """Returns the saved values; raises the second time.

    Unless the user retains the graph, autograd drops all references now, and each value dies at the last use. Values
    needed only by unused results are None.
    """
    saved = list(ctx.saved_tensors)
    ctx.maybe_clear_saved_tensors()
    if not compat.retains_graph():
        ctx.double_backward.clear()
        ctx.double_backward = None
    return _restore_saved(saved_per_result, ctx, saved, tangents)


def _take_saved_per_result(
    freed_with: Sequence[tuple[int, ...]],
    saved_per_result: SavedPerResult | None,
    double_backward: DoubleBackward,
    ctx: Any,
    tangents: Sequence[torch.Tensor | None],
) -> list[Any]:
    """Returns the saved values where holders keep all of them. Raises if a gradient comes in for a result with saved
    values freed by an earlier backward."""
    used = [index for index, tangent in enumerate(tangents) if tangent is not None]
    freed: frozenset[int] = getattr(ctx, "freed_with", frozenset())
    if not freed.isdisjoint(used):
        return list(ctx.saved_tensors)  # autograd has freed the node, and raises
    if not compat.retains_graph():
        ctx.freed_with = freed = freed.union(*(freed_with[index] for index in used))
        ctx.double_backward = (
            None if len(freed) == len(freed_with) else double_backward.release(ctx.double_backward, freed)
        )
    return _restore_saved(saved_per_result, ctx, [], tangents, freed)


def _make_flow_of(
    signature: GraphSignature, saved_per_result: SavedPerResult | None, run_backward: BackwardCall
) -> FlowOf:
    """Builds a function that computes the gradients flowing from one result to its direct inputs. The function frees no
    saved value."""

    def flow_of(ctx: Any, index: int, gradient: torch.Tensor) -> Sequence[torch.Tensor | None]:
        graph = signature.graph
        tangents = [gradient if i == index else None for i in range(len(graph.targets))]
        args = _read_saved(graph.frees_in_parts, saved_per_result, ctx, tangents) if signature.saved else []
        return run_backward.flow_of(ctx, args, run_backward.as_traced_kinds(tangents))

    return flow_of


def _read_saved(
    frees_in_parts: bool,
    saved_per_result: SavedPerResult | None,
    ctx: Any,
    tangents: Sequence[torch.Tensor | None],
) -> list[Any]:
    """Returns the saved values for a call that precedes the actual backward; raises if the latter would raise."""
    used = [index for index, tangent in enumerate(tangents) if tangent is not None]
    is_gone = not getattr(ctx, "freed_with", frozenset()).isdisjoint(used)
    saved = list(ctx.saved_tensors) if is_gone or not frees_in_parts else []
    return _restore_saved(saved_per_result, ctx, saved, tangents, ())


def _restore_saved(
    saved_per_result: SavedPerResult | None,
    ctx: Any,
    saved: list[Any],
    tangents: Sequence[torch.Tensor | None],
    freed: Collection[int] | None = None,
) -> list[Any]:
    if saved_per_result is not None:
        saved = saved_per_result.collect(ctx, saved, tangents, freed)
    if ctx.layouts is not None:
        return [value if value is None else fit.restored(value) for fit, value in zip(ctx.layouts, saved)]
    return saved


def _graph_writes(signature: GraphSignature) -> list[tuple[int, int]]:
    """Returns pairs (number of an input written by the graph itself, increment of the version in eager)."""
    inside = [m for m in signature.mutations if m.result is None or m.in_place]
    return [(m.index, m.writes) for m in inside if m.writes is not None]


def _counting_writes_first(signature: GraphSignature, call: BoxedCallable) -> BoxedCallable:
    """Wraps `call`: raises the versions of inputs written by the graph before autograd joins the inputs to nodes. Torch
    makes new nodes for views then, and later hooks are registered on the new nodes."""
    inputs = _graph_writes(signature)

    def counted(args: list[Any]) -> Any:
        written = [args[i] for i, _ in inputs]
        _count(written, [args[i]._version + count for i, count in inputs])
        del written
        return call(args)

    return counted if inputs else call


def _with_eager_metadata(signature: GraphSignature, graph: BoxedCallable, *, counted: bool = False) -> BoxedCallable:
    """Wraps `graph`: gives results and written inputs eager's metadata before autograd saves tensors: the same
    versions, the same strides, and no views of tensors inside the graph. Results written in place are the inputs' data.
    With `counted`, the versions of inputs were raised before."""
    inputs = [(i, 0 if counted else count) for i, count in _graph_writes(signature)]
    uncounted = [] if torch.is_inference_mode_enabled() else [m.index for m in signature.mutations if m.writes is None]
    in_place = sorted((m.result, m.index) for m in signature.mutations if m.in_place and m.result is not None)
    if not any((signature.result_writes, signature.internal_views, signature.result_strides, inputs, uncounted)):
        return graph
    positions, counts = zip(*signature.result_writes) if signature.result_writes else ((), ())

    def settled(args: list[Any]) -> list[Any]:
        for i in uncounted:  # the program writes to their `.data`: torch refuses writes to them and their views
            args[i] = args[i].new_empty(0).set_(args[i])
        written, versions = _counted((args[i], count) for i, count in inputs)
        holding = [(position, args[i].detach()) for position, i in in_place]
        values = list(graph(args))
        for position, data in holding:
            values.insert(position, data)
        for i in signature.internal_views:
            values[i] = values[i].detach()
        for i, strides in signature.result_strides:
            values[i] = values[i].as_strided(values[i].shape, strides).detach()
        compat.set_versions([*written, *(values[i] for i in positions)], [*versions, *counts])
        return values

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


def _with_user_outputs(
    signature: GraphSignature, run: BoxedCallable, result_nodes: ResultNodes | None = None
) -> BoxedCallable:
    """Wraps `run` with the steps on real tensors: write to inputs under autograd, make views, and, with `result_nodes`,
    join results computed from results."""
    plain = [OutputPlan("graph", i) for i in range(signature.results)]
    pending = [(m.index, m.result) for m in signature.mutations if m.result is not None]
    counted = {m.index: m.writes for m in signature.mutations if m.writes is not None and m.result is not None}
    if not pending and not counted and list(signature.outputs) == plain and result_nodes is None:
        return run if is_boxed(run) else mark_boxed(run)
    from_inputs = {i for origin, i in map(signature.origin, signature.outputs) if origin == "input"}
    needed = sorted({i for i, _ in pending} | from_inputs | counted.keys())
    positions = {index: position for position, index in enumerate(needed)}
    partial = signature.graph.partial_positions
    output_builders = [
        watching_hooks(output_builder(plan, positions), *signature.origin(plan), partial) for plan in signature.outputs
    ]
    view_builders = [output_builder(plan, positions) for plan in signature.views]
    writes = [(positions[index], result) for index, result in pending]
    counts = [(positions[index], writes) for index, writes in counted.items()]
    early = [i for i, plan in enumerate(signature.outputs) if plan.early and result_nodes is None]

    def call(args: list[Any]) -> Any:
        kept = [args[i] for i in needed]
        if early:
            found = CallValues(kept, (), view_builders)
            viewed = {i: output_builders[i](found) for i in early}
            found.values = run(args)
            return tuple([viewed[i] if i in viewed else make(found) for i, make in enumerate(output_builders)])
        written, versions = _counted((kept[index], count) for index, count in counts)
        values = run(args)
        if result_nodes is not None:
            return with_result_nodes(result_nodes, kept, list(values), dict(zip(map(id, written), versions)))
        for index, result in writes:
            _write(kept[index], values[result])
            if result in partial:
                watch_view(kept[index], values[result])
        if versions:
            _count(written, versions)
        found = CallValues(kept, values, view_builders)
        return tuple([make(found) for make in output_builders])

    def with_result_nodes(
        result_nodes: ResultNodes, kept: list[Any], values: list[Any], versions: dict[int, int]
    ) -> Any:
        def write(target: torch.Tensor, value: torch.Tensor) -> None:
            _write(target, value)
            if id(target) in versions:  # before views are made, which take over the version
                _count([target], [versions[id(target)]])
            if partial:
                watch_view(target, value)

        found = CallValues(kept, values, view_builders)
        views = result_nodes.join(
            values, [kept[index] for index, _ in writes], lambda i: output_builders[i](found), write
        )
        return tuple([views[i] if i in views else make(found) for i, make in enumerate(output_builders)])

    return mark_boxed(call)


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Writes to an input under autograd. The graph's node already takes the gradients of the input's old history; the
    copy would add zeros, so the old history is detached."""
    own = not (target.is_leaf or target._is_view() or target.retains_grad or target._backward_hooks)
    if own and value.requires_grad and torch.is_grad_enabled():
        target.detach_()
    target.copy_(value)
    refresh_grad_fn(target)


def _counted(writes: Iterable[tuple[torch.Tensor, int]]) -> tuple[list[torch.Tensor], list[int]]:
    """Returns inputs, with the versions after the write. In inference mode, tensors that were made in this mode and got
    new `.data` may be written to, but have no version."""
    writes = [*writes]
    if torch.is_inference_mode_enabled():
        writes = [(value, count) for value, count in writes if compat.version_of(value) is not None]
    return [value for value, _ in writes], [value._version + count for value, count in writes]


def _count(written: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Raises the versions of inputs to those of eager."""
    compat.set_versions(written, versions)
    for value in written:
        refresh_grad_fn(value)
