"""Owns the autograd nodes of single results of a compiled graph: what each keeps alive, and what its gradient reaches.

The graph is a single node of autograd's graph. A result gets a *result node* before the graph's node in three cases:

- It needs saved tensors that other results do not need. The graph's node lives as long as any result, so it must not
  save such tensors: as in eager, they die with the results, or in backward. A result node saves no tensors itself,
  because autograd empties each node after running it. Instead it refers to *holders*: nodes that only save tensors,
  possibly for several result nodes. If a graph has holders, every result gets a result node: autograd runs each node
  that has an edge to the node of a requested result.
- It reaches a separate input (`input_nodes.py`). The result node has an edge to the node of the input.
- It is computed from other results, its *direct inputs*. The gradient between two results never leaves the graph's
  node, so the result node has edges to the direct inputs. If a direct input is watched, by a hook for example, the
  result node computes the gradient that flows to the direct input, and the graph's node then uses the incoming
  gradients of results instead of computing the flow between results.

The gradient passes through a result node unchanged. A `NodeGraph` has all decisions; results and views are numbered
like its nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.input_nodes import (
    GRAD_SEED,
    LinkedInputs,
    SeparateInputs,
    gradient_list,
    opaque,
    without_data,
)
from minidynamo.autograd.runtime.result_hooks import graph_node, result_node, watch_hooks
from minidynamo.core.references import Reference
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph.tensor_hooks import hook_table, may_request

FlowOf = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]
Flow = Callable[[Any, torch.Tensor | None], Sequence[torch.Tensor | None]]

EMPTY = torch.empty(0)
"""Replaces saved tensors needed only by unused results."""

MOST_DECISIONS = 16
"""Decisions that are kept per call: more than backwards run at a time."""


class _Holder(torch.autograd.Function):
    """A node that only saves tensors. Autograd's rules for saved tensors apply: later writes are noticed, and the
    user's hooks run."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*values)
        return torch.empty(0)


class OwnedValues:
    """The values of a call that live as long as a result: the result node owns them, the graph's node refers to
    them."""

    def __init__(self, separate: SeparateInputs | None, position: int, ends: Mapping[int, list[torch.Tensor]]) -> None:
        self.separate = separate
        self.position = position
        #: Index of a separate input that the result reaches -> its link, and the empty tensor of the edge.
        self.ends = ends
        #: Number of a holder -> its tensor.
        self.holders: Mapping[int, torch.Tensor] = {}
        #: Inputs kept for higher derivatives, with their versions, by number.
        self.inputs: Mapping[int, Any] = {}
        #: Computes the gradients of the direct inputs, given the graph's node and the gradient of the result.
        self.flow: Flow | None = None
        #: Returns whether user code can see the gradient of a direct input.
        self.is_watched: Callable[[], bool] = lambda: False

    def free(self) -> None:
        """Frees the saved tensors."""
        self.holders = self.inputs = {}


@result_node
@compat.boxed
@opaque
class ResultNode(torch.autograd.Function):
    """The node of a result. Its edges lead to the graph's node, to separate inputs, and to direct inputs."""

    @staticmethod
    def forward(ctx: Any, owned: OwnedValues, value: list[torch.Tensor], *_: torch.Tensor) -> torch.Tensor:
        ctx.owned = owned
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def inlined(ctx: Any, saved: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
        owned: OwnedValues = ctx.owned
        if owned.ends or (owned.flow is not None and owned.is_watched()):
            return None
        return (None, None, gradients[0], *[None] * (len(ctx.needs_input_grad) - 3))

    @staticmethod
    def backward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor | None, ...]:
        gradients = gradient_list(arguments)
        del arguments
        gradient = gradients.pop()
        owned: OwnedValues = ctx.owned
        end = None
        if owned.separate is not None and owned.ends:
            owned.separate.record(graph_node(ctx)[0], owned.position, gradient)
            # An empty tensor tells each separate input that there is a gradient.
            end = None if gradient is None else torch.empty(0, device=gradient.device)
        flow = () if owned.flow is None else owned.flow(graph_node(ctx)[0], gradient)
        return (None, None, gradient, *[end] * len(owned.ends), *flow)


hold_values = compat.raw_apply(_Holder)


def unpack_changed(value: torch.Tensor, version: int) -> torch.Tensor:
    """Raises autograd's error for a saved tensor that was written to after `version`."""
    with torch.enable_grad():
        present_version = value._version
        compat.set_versions([value], [version])
        holder = hold_values(GRAD_SEED, [value])
        compat.set_versions([value], [present_version])
    return holder.grad_fn.saved_tensors[0]  # type: ignore[no-any-return]


join_result = compat.raw_apply(ResultNode)


def with_node(value: torch.Tensor, owned: OwnedValues, inputs: Iterable[torch.Tensor] = ()) -> torch.Tensor:
    """Returns a result with its result node."""
    ends = [pair[1] for pair in owned.ends.values()] if owned.ends else ()
    joined: torch.Tensor = join_result(owned, [value.detach()], value, *ends, *inputs)
    return joined


def with_separate_inputs(outputs: Sequence[Any], linked: LinkedInputs) -> list[Any]:
    """Returns the outputs of a node, with a result node for each that reaches a separate input. Gradients that the user
    has not requested are None."""
    joined = list(outputs)
    for position, ends in linked.ends.items():
        if joined[position] is not None:
            joined[position] = with_node(joined[position], OwnedValues(linked.separate, position, ends))
    return joined


class ResultNodes:
    """Makes the result nodes of one compiled graph, and the holders of its saved tensors.

    `held` has, per number of an input kept for higher derivatives, the targets that need the input. `flow_of(ctx,
    target, gradient)` returns the gradients flowing from a target to the nodes in `NodeGraph.gradients`. Gradients
    flowing to any further node are not computed: backward raises if such a node is watched.
    """

    def __init__(self, signature: GraphSignature, held: Mapping[int, tuple[int, ...]], flow_of: FlowOf) -> None:
        self.signature = signature
        self.graph = graph = signature.graph
        self.positions = graph.positions
        self.flow_of = flow_of
        #: Numbers of the saved tensors that all targets need: the graph's node saves these.
        self.common = [i for i, targets in enumerate(graph.readers) if not targets]
        #: Numbers of the further saved tensors, if the graph's node keeps them.
        self.own = [i for i, targets in enumerate(graph.readers) if targets and graph.keeps_all]
        #: Per holder: its targets, and the numbers of the saved tensors.
        self.holders = [
            (frozenset(targets), [i for i, others in enumerate(graph.readers) if others == targets])
            for targets in sorted({targets for targets in graph.readers if targets and not graph.keeps_all})
        ]
        #: Per target: its number, its position, its holders, and whether `join` makes its node.
        self.owners = [
            (
                i,
                position,
                [k for k, (targets, _) in enumerate(self.holders) if i in targets],
                bool(graph.nodes[i].inputs),
            )
            for i, position in enumerate(self.positions)
        ]
        #: Number of an input kept for higher derivatives -> the targets that need it, if only some do.
        per_target = {i: targets for i, targets in held.items() if 0 < len(targets) < len(self.positions)}
        self.held = {} if graph.keeps_all else per_target
        #: The nodes with a computable gradient, in the order of `flow_of`.
        self.computable = [*graph.gradients]
        #: Per mutation with history: its target.
        self.written = [self.positions.index(m.result) for m in self.mutations()]
        saved = [number for number, node in enumerate(graph.nodes) if node.is_saved]
        #: The nodes that may be watched: direct inputs, and targets saved by eager.
        self.sources = sorted({*saved, *(number for node in graph.nodes for number in node.inputs)})
        #: Whether each call needs `join`: results are computed from results, or written to inputs.
        self.joins = any(node.inputs for node in graph.nodes) or bool(self.written)
        #: The targets and the views among `sources`, each after the direct inputs and the base.
        self.order = _in_dependency_order({number: self.dependencies(number) for number in range(len(graph.nodes))})
        self.order = [number for number in self.order if graph.nodes[number].output is None or number in self.sources]
        #: Per number of `order`: the number, the node, the position of a target, and the direct inputs that get zeros.
        self.steps: list[tuple[int, Any, int | None, list[int]]] = []
        for number in self.order:
            node = graph.nodes[number]
            zero_inputs = [source for source in node.inputs if number in graph.nodes[source].zero_sources]
            self.steps.append((number, node, self.positions[number] if node.output is None else None, zero_inputs))
        not_computable = {*self.sources}.difference(self.computable)
        #: Per target: the direct and indirect inputs without a computable gradient.
        self.uncomputable = [not_computable & graph.all_inputs(target) for target in range(len(self.positions))]

    def mutations(self) -> list[Any]:
        """Returns the mutations that change the history of an input."""
        return [mutation for mutation in self.signature.mutations if mutation.result is not None]

    def dependencies(self, number: int) -> tuple[int, ...]:
        """Returns the direct inputs of a target, or the target whose view a node is."""
        output = self.graph.nodes[number].output
        if output is None:
            return self.graph.nodes[number].inputs
        origin = self.signature.origin(self.signature.outputs[output])
        bases = {("graph", position): target for target, position in enumerate(self.positions)}
        bases |= {("input", m.index): self.positions.index(m.result) for m in self.mutations()}
        return (bases[origin],) if origin in bases else ()

    def read(self, ctx: Any, used: Collection[int]) -> list[torch.Tensor | None]:
        """Returns the saved tensors that the `used` targets need; None for every further tensor."""
        values: list[torch.Tensor | None] = [None] * len(self.graph.readers)
        for i, value in zip(self.common, ctx.saved_tensors if self.common else ()):
            values[i] = value
        for i, value, version in zip(self.own, ctx.own, ctx.versions):
            if not {*self.graph.readers[i]}.isdisjoint(used):
                values[i] = value if value._version == version else unpack_changed(value, version)
        # The nodes of the used targets have run, so they are alive.
        for k, (targets, numbers) in enumerate(self.holders):
            if not targets.isdisjoint(used):
                owned = ctx.owned[next(target for target in used if target in targets)]()
                for i, value in zip(numbers, owned.holders[k].grad_fn.saved_tensors):
                    values[i] = value
        return values

    def join(
        self,
        results: list[Any],
        inputs: Sequence[torch.Tensor],
        view: Callable[[int], torch.Tensor],
        write: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> dict[int, torch.Tensor]:
        """Replaces results in `results` by results with a node, and writes the new data to `inputs` by `write`, in
        dependency order. Returns, by number, the outputs that it makes with `view` for this."""
        written = dict(zip(self.written, inputs, strict=True))
        node = results[self.positions[0]].grad_fn
        main = None if node is None else graph_node(node)[0]
        watch = Watch(self.signature, {})
        joined: dict[int, torch.Tensor] = {}
        outputs: dict[int, torch.Tensor] = {}
        for number, record, position, zero_inputs in self.steps:
            if position is None:
                joined[number] = outputs[record.output] = view(record.output)
                continue
            if main is not None and record.inputs:
                zeros = {source: without_data(joined[source]) for source in zero_inputs} if zero_inputs else {}
                owned = main.unjoined.pop(number)
                owned.flow = functools.partial(self.flow, number, watch, zeros)
                owned.is_watched = lambda: any(map(watch.is_watched, self.sources))
                results[position] = with_node(results[position], owned, map(joined.__getitem__, record.inputs))
            if number in written:
                write(written[number], results[position])
            joined[number] = written.get(number, results[position])
        if main is not None:
            main.watch = watch
            for number in self.sources:
                watch.add(number, joined[number], has_graph_node=number < len(self.positions) and number not in written)
        return outputs

    def flow(
        self,
        target: int,
        watch: Watch,
        zeros: Mapping[int, torch.Tensor],
        main: Any,
        gradient: torch.Tensor | None,
    ) -> list[torch.Tensor | None]:
        """Returns the gradients flowing from a target to its direct inputs, if any of them is watched. `zeros` has the
        direct inputs that get zeros for every gradient."""
        flowing: dict[int, torch.Tensor | None] = {}
        if gradient is not None and watch.is_watched_now(gradient, self.computable, self.uncomputable[target]):
            flowing = dict(zip(self.computable, self.flow_of(main, target, gradient), strict=True))
            flowing |= {i: torch.zeros_like(like) for i, like in zeros.items() if flowing.get(i) is None}
        return [flowing.get(source) for source in self.graph.nodes[target].inputs]


def _in_dependency_order(dependencies: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns all numbers, each after its dependencies."""
    order: dict[int, None] = {}

    def visit(number: int) -> None:
        if number not in order:
            for source in dependencies[number]:
                visit(source)
            order[number] = None

    for number in dependencies:
        visit(number)
    return list(order)


class Watch:
    """Finds the watched nodes of one call: nodes whose gradient a hook, `retain_grad()` or `torch.autograd.grad`
    sees."""

    def __init__(self, signature: GraphSignature, tensors: dict[int, Reference]) -> None:
        self.signature = signature
        #: The tensors of the nodes that may be watched, by number.
        self.tensors = tensors
        #: Pairs (position of a result, or None for the graph's node; the hooks registered there).
        self.hooks: list[tuple[int | None, Mapping[int, Any]]] = []
        #: The hooks of tensors whose node is torch's own, by number.
        self.tables: dict[int, Mapping[int, Any]] = {}
        #: Decisions by number of the backward, at most MOST_DECISIONS.
        self.decided: dict[int, bool] = {}

    def add(self, number: int, tensor: torch.Tensor, *, has_graph_node: bool) -> None:
        """Starts to watch a tensor."""
        if tensor.grad_fn is not None:
            self.tensors[number] = Reference(tensor)
            if not has_graph_node:
                self.tables[number] = hook_table(tensor)

    def is_watched_now(
        self, gradient: torch.Tensor, computable: Collection[int], uncomputable: Collection[int]
    ) -> bool:
        """Returns whether any node in `computable` is watched in the running backward; the answer does not change
        during a backward.

        Raises if a watched gradient cannot be computed: the gradient of a node in `uncomputable`, or a differentiated
        or batched gradient.
        """
        if uncomputable and any(map(self.is_watched, uncomputable)):
            raise _not_shown_error()
        number = compat.current_backward()
        if number not in self.decided or number < 0:  # the number of every captured backward
            self.decided[number] = any(map(self.is_watched, computable))
            if len(self.decided) > MOST_DECISIONS:
                del self.decided[min(self.decided)]
        if self.decided[number] and (torch.is_grad_enabled() or compat.is_batched(gradient)):
            raise _not_shown_error()
        return self.decided[number]

    def alive(self, numbers: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """Returns (number, tensor) of the nodes whose tensors are alive."""
        tensors = ((number, self.tensors[number]()) for number in numbers if number in self.tensors)
        return [(number, tensor) for number, tensor in tensors if tensor is not None]

    def refuse(self, numbers: Iterable[int]) -> None:
        """Raises if a node is watched: gradients of gradients would flow to its tensor in eager."""
        for number in sorted(numbers):
            if self.is_watched(number):
                raise _not_shown_twice_error(number, self.signature)

    def is_watched(self, number: int) -> bool:
        """Returns whether user code can see the gradient of a node."""
        if number not in self.tensors:
            return False
        tensor, position = self.tensors[number](), self.signature.graph.nodes[number].position
        hooks = [table for at, table in self.hooks if at in (None, position)]
        if any(hooks) or self.tables.get(number) or (tensor is not None and tensor.retains_grad):
            return True
        is_partial = not compat.runs_for_all_leaves() or compat.current_backward() < 0
        return tensor is not None and is_partial and may_request(tensor)


def is_cut(node: Any) -> bool:
    """Returns whether incoming gradients at the graph's node include the flow between results."""
    watch: Watch | None = getattr(node, "watch", None)
    return watch is not None and watch.decided.get(compat.current_backward(), False)


def watched(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Makes nodes of `function` record hooks on results, for `Watch`."""
    return watch_hooks(function, _notice)


def _notice(node: Any, output: int | None, hooks: Mapping[int, Any]) -> None:
    main, position = graph_node(node, output)
    watch: Watch | None = getattr(main, "watch", None)
    if watch is not None:
        watch.hooks.append((position, hooks))


watched(ResultNode)


def _not_shown_error() -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            "a gradient between results of a compiled graph cannot be shown in this backward",
            why="A hook, `retain_grad()` or a call of `torch.autograd.grad` watches it. At a view, and with"
            " `create_graph=True` or `is_grads_batched=True`, it is not computed separately from the gradients of the"
            " inputs.",
            fix="Call `minidynamo.graph_break()` in the function after the result that is watched.",
        )
    )


def _not_shown_twice_error(index: int, signature: GraphSignature) -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            f"the gradient of {_name(index, signature)} cannot be shown where gradients are differentiated",
            why="A hook, `retain_grad()` or a call of `torch.autograd.grad` watches it. In eager gradients of gradients"
            " flow to it, since it was saved for backward. In a compiled graph they flow directly to the inputs of the"
            " graph.",
            fix="Remove the hook before the second backward, or run the function without minidynamo there:"
            " `fn.__wrapped__(...)`.",
        )
    )


def _name(index: int, signature: GraphSignature) -> str:
    """Returns a name for the tensor, for error messages."""
    node = signature.graph.nodes[index]
    outputs, result = [node.output], node.position
    if result is not None:
        outputs = [i for i, plan in enumerate(signature.outputs) if (plan.origin, plan.index) == ("graph", result)]
    written = [signature.inputs[m.index] for m in signature.mutations if m.result == result is not None]
    return f"`{written[0]}`" if written else f"result {outputs[0]} of a compiled graph" if outputs else "a result"
