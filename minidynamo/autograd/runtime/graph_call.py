"""Owns the steps around the compiled graphs of a call: mutations of inputs, aliased outputs, eager's metadata.

A `GraphSignature` contains all decisions. Every function takes one list and passes the same list to the next callee, so
no caller holds a tensor while a graph runs, except inputs needed after the graph.

`graph_node.py` has the autograd node of a call, `backward_call.py` compiles and calls the backward.

Terms of this folder: a *result* is a value that the compiled graph returns, an *output* is a value that the user's
function returns. The `index` of a result is its index in `NodeGraph.nodes`, for a target; its `position` counts all
results. The *graph's node* is the autograd node of the whole graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import GraphSignature, OutputPlan
from minidynamo.autograd.partition.packing import Unpack
from minidynamo.autograd.runtime.backward_call import BackwardCall, BackwardGraphs, CompiledOnFirstCall
from minidynamo.autograd.runtime.double_backward import DoubleBackward
from minidynamo.autograd.runtime.graph_node import GraphNode, Saved, SavedPositions
from minidynamo.autograd.runtime.node_program import node_call
from minidynamo.autograd.runtime.rebuild_outputs import CallValues, output_builder, watching_hooks
from minidynamo.autograd.runtime.result_hooks import watch_view
from minidynamo.autograd.runtime.result_nodes import ResultNodes
from minidynamo.graph.boxed import BoxedCallable, is_boxed, mark_boxed
from minidynamo.graph.tensor_hooks import refresh_grad_fn


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
    graphs: BackwardGraphs,
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
    backward = BackwardCall(signature, graphs, expected[len(saved) :])
    counted = _with_eager_metadata(signature, forward, counted=True)
    node = GraphNode(signature, counted, SavedPositions(saved, expected, signature.results), backward, double_backward)
    node.unpack = unpack
    call = _with_constants(signature, _counting_writes_first(signature, node_call(node)))
    return _with_user_outputs(signature, call, node.result_nodes if node.result_nodes.joins else None)


def checking_inputs(
    signature: GraphSignature, examples: Sequence[Any], call: BoxedCallable, make_eager: Callable[[], BoxedCallable]
) -> BoxedCallable:
    """Wraps `call`, which was compiled for inputs like `examples`: calls the result of `make_eager` instead in three
    cases.

    - A written input shares memory with another input.
    - A written input and another input have the same base for autograd, as after `view.data = tensor`.
    - A written input is a view that is watched, or the program returns a view of it. In eager the history of such a
      view depends on the views that were written to, and on the views that existed before the write.
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
        if any(map(compat.is_view, tensors_of(args))) and _share_a_base(written_of(args), others_of(args)):
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


def _share_a_base(written: Iterable[torch.Tensor], others: Iterable[Any]) -> bool:
    """Returns whether a written argument and another argument have the same base for autograd."""
    written_bases = [id(tensor._base if tensor._is_view() else tensor) for tensor in written]
    bases = {id(arg._base if arg._is_view() else arg) for arg in others if isinstance(arg, torch.Tensor)}
    return len({*written_bases}) < len(written_bases) or not bases.isdisjoint(written_bases)


def _graph_writes(signature: GraphSignature) -> list[tuple[int, int]]:
    """Returns pairs (number of an input written by the graph itself, increment of the version in eager)."""
    in_graph = [m for m in signature.mutations if m.result is None or m.in_place]
    return [(m.index, m.writes) for m in in_graph if m.writes is not None]


def _counting_writes_first(signature: GraphSignature, call: BoxedCallable) -> BoxedCallable:
    """Wraps `call`: raises the versions of inputs written by the graph before autograd joins the inputs to nodes. Torch
    then makes new nodes for views, and later hooks are registered on these."""
    inputs = _graph_writes(signature)

    def call_after_counting(args: list[Any]) -> Any:
        written = [args[i] for i, _ in inputs]
        _count(written, [args[i]._version + count for i, count in inputs])
        del written
        return call(args)

    return call_after_counting if inputs else call


def _with_eager_metadata(signature: GraphSignature, graph: BoxedCallable, *, counted: bool = False) -> BoxedCallable:
    """Wraps `graph`: gives results and written inputs eager's metadata before autograd saves tensors: the same
    versions, the same strides, and no views of tensors inside the graph. For results that are written in place, returns
    the data of the inputs. With `counted`, the versions of inputs were raised before."""
    inputs = [(i, 0 if counted else count) for i, count in _graph_writes(signature)]
    uncounted = [] if torch.is_inference_mode_enabled() else [m.index for m in signature.mutations if m.writes is None]
    in_place = sorted((m.result, m.index) for m in signature.mutations if m.in_place and m.result is not None)
    if not any((signature.result_writes, signature.internal_views, signature.result_strides, inputs, uncounted)):
        return graph
    positions, counts = zip(*signature.result_writes) if signature.result_writes else ((), ())
    sets_versions = bool(inputs or positions)

    def call_with_metadata(args: list[Any]) -> list[Any]:
        for i in uncounted:  # the program writes to their `.data`; torch refuses direct writes
            args[i] = args[i].new_empty(0).set_(args[i])
        written, versions = _counted((args[i], count) for i, count in inputs) if inputs else ([], [])
        written_data = [(position, args[i].detach()) for position, i in in_place] if in_place else ()
        values = list(graph(args))
        for position, data in written_data:
            values.insert(position, data)
        for i in signature.internal_views:
            values[i] = values[i].detach()
        for i, strides in signature.result_strides:
            values[i] = values[i].as_strided(values[i].shape, strides).detach()
        if sets_versions:
            compat.set_versions([*written, *map(values.__getitem__, positions)], [*versions, *counts])
        return values

    return call_with_metadata


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
    """Wraps `run` with the steps on real tensors: make views, and, with `result_nodes`, write to inputs under autograd
    and join results computed from results."""
    result_plans = [OutputPlan("graph", i) for i in range(signature.results)]
    if list(signature.outputs) == result_plans and result_nodes is None:
        return run if is_boxed(run) else mark_boxed(run)
    pending = [(m.index, m.writes) for m in signature.mutations if m.result is not None]
    from_inputs = {i for origin, i in map(signature.origin, signature.outputs) if origin == "input"}
    needed_inputs = sorted({i for i, _ in pending} | from_inputs)
    positions = {index: position for position, index in enumerate(needed_inputs)}
    partial = signature.graph.partial_positions
    output_builders = [
        watching_hooks(output_builder(plan, positions), *signature.origin(plan), partial) for plan in signature.outputs
    ]
    view_builders = [output_builder(plan, positions) for plan in signature.views]
    early = [i for i, plan in enumerate(signature.outputs) if plan.early and result_nodes is None]
    #: Per output: its position if it is a result itself.
    direct = [plan.index if plan in result_plans else None for plan in signature.outputs]
    steps = [*enumerate(zip(direct, output_builders))]

    def call(args: list[Any]) -> Any:
        state = CallValues([args[i] for i in needed_inputs] if needed_inputs else (), (), view_builders)
        viewed = {i: output_builders[i](state) for i in early} if early else {}
        if result_nodes is None:
            state.values = run(args)
        else:
            versions: dict[int, int] = {}
            if pending:
                written, counts = _counted((args[i], count) for i, count in pending if count is not None)
                versions.update(zip(map(id, written), counts))
                del written
            state.values = values = list(run(args))
            inputs = [state.kept[positions[index]] for index, _ in pending] if pending else ()
            viewed = result_nodes.join(values, inputs, lambda i: output_builders[i](state), writing(versions))
        outputs = []
        for i, (position, build) in steps:
            outputs.append(viewed[i] if i in viewed else build(state) if position is None else state.values[position])
        return tuple(outputs)

    def writing(versions: dict[int, int]) -> Callable[[torch.Tensor, torch.Tensor], None]:
        def write(target: torch.Tensor, value: torch.Tensor) -> None:
            _write(target, value)
            if id(target) in versions:  # before views are made, which take over the version
                _count([target], [versions[id(target)]])
            if partial:
                watch_view(target, value)

        return write

    return mark_boxed(call)


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Writes to an input under autograd. The graph's node already has an edge to the input's old history, and the copy
    would only add zeros there, so the old history is detached."""
    has_own_history = not (target.is_leaf or target._is_view() or target.retains_grad or target._backward_hooks)
    if has_own_history and value.requires_grad and torch.is_grad_enabled():
        target.detach_()
    target.copy_(value)
    refresh_grad_fn(target)


def _counted(writes: Iterable[tuple[torch.Tensor, int]]) -> tuple[list[torch.Tensor], list[int]]:
    """Returns inputs, with the versions after the write. Inference tensors with new `.data` may be written to in
    inference mode, but have no version."""
    writes = [*writes]
    if torch.is_inference_mode_enabled():
        writes = [(value, count) for value, count in writes if compat.version_of(value) is not None]
    return [value for value, _ in writes], [value._version + count for value, count in writes]


def _count(written: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Raises the versions of inputs to those of eager."""
    compat.set_versions(written, versions)
    for value in written:
        refresh_grad_fn(value)
