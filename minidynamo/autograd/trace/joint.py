"""Owns the tracing of the joint graph: the forward operations of the user's program, then its gradients.

The graph still contains in-place and view operations; `functionalize` removes them. `output_alias_sets.py` finds which
outputs share memory with inputs or with each other, while the traced tensors still exist.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    track_tensor_tree,
)

from minidynamo import compat
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.mutation import write_undeclared_outputs
from minidynamo.autograd.graph.numbers import is_empty, is_symbolic, simplified
from minidynamo.autograd.graph.provenance import LocatingInterpreter, LocationRecorder, line_of_node
from minidynamo.autograd.graph.signature import NO_GRAPH, Edge, Node, NodeGraph
from minidynamo.autograd.trace import scalar_arguments
from minidynamo.autograd.trace.call_rewrites import with_ends, without_vectors
from minidynamo.autograd.trace.checks import assert_values
from minidynamo.autograd.trace.defaults import write_defaults
from minidynamo.autograd.trace.fallback_op import (
    CHOOSES_BY_DATA,
    CHOOSES_IN_HIGHER_ORDER,
    REFUSES_BY_DATA,
    NoFallbackOp,
    method,
    run_as_fallback_op,
)
from minidynamo.autograd.trace.grad_graph_queries import (
    eager_nodes,
    edge_order,
    leaves_reached,
    reachable_functions,
    reached_results,
    reaching_results,
    recording_leaf_order,
    used_results,
    zero_sources,
)
from minidynamo.autograd.trace.output_alias_sets import (
    OutputAliasSet,
    TracedOutput,
    classify,
    find_sources,
    refuse_copies,
)
from minidynamo.autograd.trace.tensor_index import IndexReads, add_shape_env
from minidynamo.compat import FakeTensor, FakeTensorMode, OpOverload
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused, MinidynamoError, first_line, line_of, summary
from minidynamo.fake import mode as fake_mode
from minidynamo.graph.function_results import recording_copies
from minidynamo.graph.higher_order import CHECKPOINTS
from minidynamo.graph.pytree import as_sequence
from minidynamo.graph.torch_settings import is_switch, preserved, restore, settings
from minidynamo.graph.unbacked_symints import has_index_tensors, run_with_indices


@record
class Trace:
    """The joint graph with its parts.

    An input is named by its position in the flat list of inputs. A target is a differentiated result: first the inputs
    in `mutated_with_grad`, then the alias sets that require grad. Nodes are numbered as in `node_graph`.
    """

    graph: fx.Graph
    mode: FakeTensorMode
    #: The traced module, which owns `graph`.
    owner: fx.GraphModule | None = None
    #: Input -> placeholder, for tensor inputs.
    primals: dict[int, fx.Node] = field(default_factory=dict)
    #: Input -> placeholder, for symbolic numbers.
    numbers: dict[int, fx.Node] = field(default_factory=dict)
    #: One entry per output of the user's graph.
    outputs: list[TracedOutput] = field(default_factory=list)
    #: Tensors between an output and the owner of its memory, such as `x.detach()` for the output `x.detach()[0]`.
    intermediates: list[TracedOutput] = field(default_factory=list)
    #: Outputs that share memory with each other and with no input; indexed by `TracedOutput.index`.
    alias_sets: list[OutputAliasSet] = field(default_factory=list)
    #: Input -> new data, for inputs with a changed gradient function.
    mutated_with_grad: dict[int, fx.Node | None] = field(default_factory=dict)
    #: Tensor input -> whether the input requires grad when the program ends.
    requires_grad: dict[int, bool] = field(default_factory=dict)
    #: Tensor input -> whether the input is a leaf for the user.
    is_leaf: dict[int, bool] = field(default_factory=dict)
    #: One placeholder per `tangent_targets` entry; without higher orders, one per target.
    tangents: list[fx.Node] = field(default_factory=list)
    #: Input that requires grad -> its gradient, or None if no gradient reaches the input. In the order of the edges of
    #: `node_graph`.
    gradients: dict[int, fx.Node | None] = field(default_factory=dict)
    #: Clones of non-leaf inputs, which the program may write to.
    input_copies: set[fx.Node] = field(default_factory=set)
    #: Tensor input -> how many writes to the input torch counts; inference tensors have no entry.
    write_counts: dict[int, int] = field(default_factory=dict)
    #: One (order, i) per tangent: the tangent is the gradient of value i among the differentiated values of the order.
    tangent_targets: list[tuple[int, int]] = field(default_factory=list)
    #: The results of backward of the highest order: one per input with a gradient, then one per tangent slot of the
    #: lower orders (None where a slot has no differentiable tangent).
    derivatives: list[fx.Node | None] = field(default_factory=list)
    #: One per derivative: whether the derivative can be differentiated again.
    differentiable: tuple[bool, ...] = ()
    #: Tensors that eager saves only for higher derivatives.
    saved_for_derivatives: list[fx.Node] = field(default_factory=list)
    #: Node -> its total gradient, for the nodes that targets are computed from directly.
    result_gradients: dict[int, fx.Node | None] = field(default_factory=dict)
    #: The autograd graph; its edges are in the order of `gradients`. Empty with higher orders.
    node_graph: NodeGraph = NO_GRAPH
    #: One entry per derivative: the nodes that gradients of the derivative reach.
    reached_results: tuple[frozenset[int], ...] = ()
    #: Position of an input with a gradient, or of a later tangent slot -> derivatives from which autograd gets there.
    reaching_derivatives: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def training(self) -> bool:
        """True if gradients were traced."""
        return bool(self.tangents)


class _Untraceable(Exception):
    """The derivatives of the torch-level `nodes` cannot be traced because of `error`: the derivatives read data, for
    example."""

    def __init__(self, nodes: set[fx.Node], error: Exception) -> None:
        super().__init__(nodes, error)
        self.nodes = nodes
        self.error = error


_READS_DATA = (compat.DataDependentOutput, compat.DynamicOutputShape)


class _WriteToLeaf(Exception):
    """The program writes to an input that is not a leaf for the user, but was traced as a leaf."""


TangentKinds: TypeAlias = tuple[bool | None, ...]
"""The tangents of one order. One entry per differentiated value: None without a tangent, else whether the tangent can
be differentiated."""


@record(frozen=True)
class _Program:
    """A program to trace, with the arguments of `trace_joint`."""

    gm: fx.GraphModule
    layout: InputLayout
    #: Fake values of the inputs, all of `mode`.
    flat: Sequence[Any]
    mode: FakeTensorMode
    #: Tensor input -> whether the input is a leaf for the user.
    leaves: dict[int, bool]
    decompositions: dict[OpOverload, Callable[..., Any]]
    orders: Sequence[TangentKinds]
    inputs: Sequence[int]


def trace_joint(
    gm: fx.GraphModule,
    layout: InputLayout,
    flat: Sequence[Any],
    decompositions: dict[OpOverload, Callable[..., Any]],
    orders: Sequence[TangentKinds] = (),
    inputs: Sequence[int] = (),
) -> Trace:
    """Traces `gm` on the fake values `flat`, and its gradients if any result requires grad.

    With `orders`, traces gradients of gradients too, one order per entry. Each order differentiates the results of the
    previous order by the `inputs`, in their order, and by the differentiable tangents of earlier orders. Runs under the
    current grad mode.
    Raises GraphRefused MD401 if torch refuses the program, and MD404 if outputs share memory in a way that cannot be
    rebuilt.
    """
    mode = mode_of(gm, flat)
    if any(map(has_index_tensors, gm.graph.nodes)):
        add_shape_env(mode)
    try:
        leaves = {i: value.is_leaf for i, value in enumerate(flat) if isinstance(value, torch.Tensor)}
        flat = [_as_fake(mode, simplified(value)) for value in flat]
        program = _Program(gm, layout, flat, mode, leaves, decompositions, orders, inputs)
        # Anomaly mode would search for NaN in gradients without data. Under saved-tensor hooks autograd does not
        # notice writes to saved tensors.
        with compat.without_fake_tensor_log(), torch.autograd.set_detect_anomaly(False), compat.no_saved_tensor_hooks():
            return _trace_with_fallback_ops(program)
    except MinidynamoError:
        raise
    except Exception as error:
        raise untraceable(error) from error


def untraceable(error: Exception) -> GraphRefused:
    """Returns the error for a program that torch refuses to run on fake tensors."""
    return GraphRefused(
        Diagnostic(
            "MD401",
            "the graph cannot be traced for autograd",
            why=f"On tensors without data torch raises {summary(error)}",
            fix="Run the function without minidynamo to see whether torch raises the same there.",
            where=line_of(error),
        )
    )


def _trace_with_fallback_ops(program: _Program) -> Trace:
    """Traces a program with as few fallback ops as possible."""
    fallback_nodes: set[fx.Node] = set()
    errors: list[Exception] = []
    while True:
        try:
            return _trace_for_sizes(program, fallback_nodes)
        except _Untraceable as found:
            errors.append(found.error)
            if found.nodes <= fallback_nodes:
                raise found.error from None
            fallback_nodes |= found.nodes
        except NoFallbackOp as why:
            raise RuntimeError(f"{first_line(errors[-1])}, and {why}") from errors[-1]


def _trace_for_sizes(program: _Program, fallback_nodes: Collection[fx.Node]) -> Trace:
    """Traces a program by the rules for symbolic sizes, if there are symbolic sizes and the rules succeed."""
    if program.mode.shape_env is not None:
        with contextlib.suppress(Exception), compat.python_dispatcher():
            return _trace_once(program, fallback_nodes)
    return _trace_once(program, fallback_nodes)


def _trace_once(program: _Program, fallback_nodes: Collection[fx.Node]) -> Trace:
    try:
        return _Tracing(program, fallback_nodes, copy_inputs=False).trace()
    except _WriteToLeaf:
        return _Tracing(program, fallback_nodes, copy_inputs=True).trace()


def mode_of(gm: fx.GraphModule, values: Sequence[Any]) -> FakeTensorMode:
    """Returns the fake mode of the values that a graph is traced on; a new mode if the values have none."""
    candidates = [*values, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    mode = next((value.fake_mode for value in candidates if isinstance(value, FakeTensor)), None)
    return mode or fake_mode.FakeTensorMode()


class _Tracing:
    """An attempt to trace. With `copy_inputs`, inputs that are not leaves for the user are not leaves in the trace."""

    def __init__(self, program: _Program, fallback_nodes: Collection[fx.Node], *, copy_inputs: bool) -> None:
        self.program = program
        self.gm = program.gm
        self.flat = program.flat
        self.orders = program.orders
        self.fallback_nodes = fallback_nodes
        self.copy_inputs = copy_inputs
        self.tensors = [i for i, value in enumerate(self.flat) if isinstance(value, torch.Tensor)]
        self.numbers = [i for i, value in enumerate(self.flat) if is_symbolic(value)]
        self.result = Trace(fx.Graph(), program.mode, is_leaf=program.leaves)
        #: The tensors of the nodes: targets, then views.
        self.watchable: list[torch.Tensor] = []

    def trace(self) -> Trace:
        self.casts_once = torch.is_autocast_cache_enabled()
        with contextlib.ExitStack() as stack:
            stack.enter_context(compat.keeping_thread_state())  # a second attempt may follow an error
            stack.enter_context(preserved())
            stack.enter_context(compat.traced_lazily())
            arguments = [self.flat[i] for i in (*self.tensors, *self.numbers)]
            table = fake_mode.Composites({**fake_mode.COMPOSITES, **self.program.decompositions})
            traced = compat.make_fx(self.run, decomposition_table=table)(*arguments)
        trace = self.result
        trace.owner, trace.graph = traced, traced.graph
        _drop_known_numbers(traced.graph)
        if any(is_switch(node.target) for node in self.gm.graph.nodes):
            write_defaults(traced.graph, self.program.mode)
        placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
        trace.primals = dict(zip(self.tensors, placeholders))
        trace.numbers = dict(zip(self.numbers, placeholders[len(self.tensors) :]))
        trace.tangents = placeholders[len(self.tensors) + len(self.numbers) :]
        (output,) = (node for node in traced.graph.nodes if node.op == "output")
        outputs, alias_sets, mutated, gradients, trace.saved_for_derivatives, result_gradients = output.args[0]
        for entry, node in zip((*trace.outputs, *trace.intermediates), outputs):
            entry.node = node
        for alias_set, node in zip(trace.alias_sets, alias_sets):
            alias_set.node, alias_set.root = node, None
        trace.mutated_with_grad = dict(zip(trace.mutated_with_grad, mutated))
        trace.derivatives = list(gradients)
        trace.gradients = dict(zip(trace.gradients, gradients))
        trace.result_gradients = dict(zip(trace.result_gradients, result_gradients))
        return trace

    def run_gradients(
        self, targets: list[torch.Tensor], sources: Mapping[int, torch.Tensor], nodes: Sequence[Node]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Returns the gradients of `sources`, and the total gradients of the nodes that targets are computed from;
        records the edges of the graph."""
        watched = {number: self.watchable[number] for number in sorted({i for node in nodes for i in node.inputs})}
        self.result.result_gradients = dict.fromkeys(watched)
        leaf_order = [] if self.orders else recording_leaf_order(sources)
        all_gradients = self.run_backward(targets, list(sources.values()))
        count = len(all_gradients) - len(watched)
        gradients, result_gradients = all_gradients[:count], all_gradients[count:]
        if self.orders:
            self.result.gradients = dict.fromkeys(sources)
            return gradients, []
        by_input = dict(zip(sources, gradients))
        zeros = zero_sources(targets, sources, gradients, self.tracer)
        result_zeros = zero_sources(targets, watched, result_gradients, self.tracer)
        reaching = reaching_results(targets, sources, by_input)
        order = edge_order(leaf_order, sources, self.result.is_leaf)
        self.result.node_graph = NodeGraph(
            tuple(replace(node, zero_sources=result_zeros.get(number, ())) for number, node in enumerate(nodes)),
            tuple(Edge(i, by_input[i] is not None, (), zeros.get(i, ()), reaching[i]) for i in order),
        )
        self.result.gradients = dict.fromkeys(order)
        return [by_input[i] for i in order], result_gradients

    def run(self, *values: Any) -> tuple[list[Any], ...]:
        """Runs the program, then computes its gradients, under `make_fx`.

        Returns the outputs, the roots of the alias sets, the mutated inputs, the gradients, the tensors that eager
        saves for higher derivatives, and the total gradients of watched results.
        """
        mode = get_proxy_mode()
        assert mode is not None
        self.tracer: Any = mode.tracer
        recorder = self.recorder = LocationRecorder(self.tracer.graph, higher_order=bool(self.orders))
        with self.program.mode, recorder.locating():
            leaves = dict(zip(self.tensors, map(_as_leaf, values)))
            inputs = {i: self.as_input(i, leaf) for i, leaf in leaves.items()}
            histories = {i: value.grad_fn for i, value in inputs.items()}
            versions = {i: count for i, value in inputs.items() if (count := compat.version_of(value)) is not None}
            numbers = dict(zip(self.numbers, values[len(self.tensors) :]))
            arguments = [inputs.get(i, numbers.get(i, value)) for i, value in enumerate(self.flat)]
            # Collected before the program runs: a write may make an input require grad, but such an input has no
            # gradient.
            wanted = {i: leaves[i] for i in self.program.inputs or leaves if leaves[i].requires_grad}
            outputs = self.run_forward(inputs, arguments)
            mutated = {i: v for i, v in inputs.items() if v.grad_fn is not histories[i]}
            self.result.write_counts = {i: inputs[i]._version - count for i, count in versions.items()}
            intermediates = self.classify_outputs(outputs, inputs)
            alias_sets = self.result.alias_sets
            targets = [*mutated.values(), *(s.root for s in alias_sets if s.requires_grad and s.root is not None)]
            sources = {i: leaf for i, leaf in wanted.items() if leaf.requires_grad} if targets else {}
            functions = reachable_functions(targets)
            nodes = self.find_nodes(targets, functions, outputs, is_watchable=bool(sources))
            saved_for_derivatives = [] if self.orders else _saved_for_derivatives(functions)
            with compat.without_autocast():  # autocast applies to forward only
                gradients, result_gradients = self.run_gradients(targets, sources, nodes)
            recorder.end()
        self.result.mutated_with_grad = dict.fromkeys(mutated)
        self.result.requires_grad = {i: value.requires_grad for i, value in inputs.items()}
        return (
            [*outputs, *intermediates],
            [alias_set.root for alias_set in alias_sets],
            list(mutated.values()),
            gradients,
            saved_for_derivatives,
            result_gradients,
        )

    def as_input(self, index: int, leaf: torch.Tensor) -> torch.Tensor:
        if not self.copy_inputs or not leaf.requires_grad or self.result.is_leaf[index]:
            return leaf
        copy = leaf.clone()
        node = next(iter(reversed(self.tracer.graph.nodes)))
        self.result.input_copies.add(node)
        return copy

    def run_forward(self, inputs: Mapping[int, torch.Tensor], arguments: list[Any]) -> list[Any]:
        """Runs the program, and restores the settings that it changes. Returns the outputs."""
        before = settings()
        with _blocks_of_autocast(self.casts_once), recording_copies(lambda: self.recorder.current) as copies:
            outputs = self.interpret(arguments)
        refuse_copies(copies, outputs, inputs)
        restore(before)
        return outputs

    def classify_outputs(self, outputs: list[Any], inputs: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """Records the outputs and their alias sets. Returns the tensors of `Trace.intermediates`."""
        returned = self.gm.graph.output_node().args[0]
        lines = [*map(line_of_node, as_sequence(returned))]
        entries, alias_sets = classify(outputs, inputs, lines)
        intermediates, self.result.intermediates = find_sources(outputs, entries, alias_sets, inputs)
        self.result.outputs, self.result.alias_sets = entries, alias_sets
        return intermediates

    def find_nodes(
        self,
        targets: list[torch.Tensor],
        functions: Iterable[torch.autograd.graph.Node],
        outputs: Sequence[Any],
        *,
        is_watchable: bool,
    ) -> tuple[Node, ...]:
        """Returns the nodes of eager's graph, and records their tensors. No node is watchable if no gradient reaches an
        input."""
        views = _views(outputs, self.result.outputs) if is_watchable else {}
        self.watchable = [*targets, *views.values()]
        if self.orders or not targets:
            return ()
        is_freed = any(map(compat.runs_once, functions))
        return eager_nodes(targets, views, self.watchable if is_watchable else [], is_freed)

    def interpret(self, arguments: list[Any]) -> list[Any]:
        try:
            outputs = _CheckingInterpreter(self.gm, self.recorder, self.fallback_nodes).run(
                *self.program.layout.unflatten(arguments)
            )
        except RuntimeError as error:
            if "a leaf Variable that requires grad" in str(error) and not self.copy_inputs:
                raise _WriteToLeaf from error
            raise
        self.recorder.enter(None)
        return list(as_sequence(outputs))

    def run_backward(self, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> list[torch.Tensor | None]:
        results: list[torch.Tensor | None] = [*targets]
        slots: list[torch.Tensor | None] = [*sources, *(self.watchable[i] for i in self.result.result_gradients)]
        with _no_autocast():
            for order, kinds in enumerate(self.orders or [(False,) * len(targets)] * bool(targets)):
                tangents = self.tangents(order, results, kinds)
                targets_in_order = {i: value for i, value in enumerate(results) if i in tangents and value is not None}
                results = self.differentiated(
                    list(targets_in_order.values()), slots, list(tangents.values()), first=order == 0
                )
                slots += [
                    tangents[i] if is_differentiable and i in tangents else None
                    for i, is_differentiable in enumerate(kinds)
                ]
        derivatives = results[: len(results) - len(self.result.result_gradients)]
        self.result.differentiable = tuple(value is not None and value.requires_grad for value in derivatives)
        if self.orders:
            self.result.reached_results = reached_results(derivatives, self.watchable)
            present = {i: slot for i, slot in enumerate(slots) if slot is not None}
            computed = [i for i, value in enumerate(derivatives) if value is not None]
            reached = leaves_reached([value for value in derivatives if value is not None], present)
            # If nothing is reached, the results of a `once_differentiable` function only lead to an error.
            everywhere = {} if any(reached.values()) else dict.fromkeys(present, tuple(computed))
            self.result.reaching_derivatives = everywhere or {
                i: tuple(computed[k] for k in values) for i, values in reached.items()
            }
        return results

    def tangents(
        self, order: int, targets: Sequence[torch.Tensor | None], kinds: TangentKinds
    ) -> dict[int, torch.Tensor]:
        """Creates the tangents of one order, by the position of the differentiated value."""
        by_position = {}
        for i, (target, differentiable) in enumerate(zip(targets, kinds, strict=True)):
            if target is not None and differentiable is not None and (order == 0 or target.requires_grad):
                self.result.tangent_targets.append((order, i))
                by_position[i] = self.tangent(f"{order}_{i}" if order else f"{i}", target, differentiable)
        return by_position

    def differentiated(
        self,
        targets: list[torch.Tensor],
        slots: list[torch.Tensor | None],
        tangents: list[torch.Tensor],
        *,
        first: bool,
    ) -> list[torch.Tensor | None]:
        """Returns the gradients of `targets` by each tensor in `slots`."""
        if not targets:
            return [None] * len(slots)
        if self.orders:
            _raise_delayed_errors(targets)
        self.refuse_data_dependent_formulas(targets, first=first)
        sources = [source for source in slots if source is not None]
        create_graph = bool(self.orders)
        retain_graph = create_graph or len(targets) > 1
        try:
            gradients = iter(
                torch.autograd.grad(targets, sources, tangents, retain_graph, create_graph, allow_unused=True)
            )
        except Exception as error:
            # Eager may raise any other error of a first derivative as well, for an overwritten value, for example.
            if self.recorder.current is None or not (create_graph or isinstance(error, _READS_DATA)):
                raise
            raise _Untraceable({self.recorder.current}, error) from error
        return [None if source is None else next(gradients) for source in slots]

    def refuse_data_dependent_formulas(self, targets: list[torch.Tensor], *, first: bool) -> None:
        """Raises _Untraceable for derivatives that depend on data but trace without an error; the operations become
        fallback ops."""
        origins = self.recorder.origins.items()
        nodes = {origin for function, origin in origins if self.depends_on_data(function)}
        if first:  # if the first order is safe, the higher orders are
            nodes |= {origin for function, origin in origins if _may_refuse(function, targets)}
        if nodes - {*self.fallback_nodes}:
            raise _Untraceable(nodes, RuntimeError("a formula is chosen by data"))

    def depends_on_data(self, function: torch.autograd.graph.Node) -> bool:
        """Returns whether a gradient function chooses its formula by data, which fake tensors lack."""
        names = CHOOSES_IN_HIGHER_ORDER if self.orders else CHOOSES_BY_DATA
        return compat.name_of(function) in names and _has_data(compat.saved_by(function))

    def tangent(self, name: str, target: torch.Tensor, differentiable: bool) -> torch.Tensor:
        """Creates the gradient that autograd passes for `target`."""
        with disable_proxy_modes_tracing():
            # Autograd guarantees the shape of the target; the runtime guarantees the strides.
            tangent = torch.empty_like(target.detach()).requires_grad_(differentiable)
        proxy = self.tracer.create_proxy("placeholder", f"tangents_{name}", (), {})
        track_tensor_tree(tangent, proxy, constant=None, tracer=self.tracer)
        return tangent


def _saved_for_derivatives(functions: Iterable[torch.autograd.graph.Node]) -> list[torch.Tensor]:
    """Returns the saved tensors of functions whose higher derivatives read more saved tensors than backward does:
    matrix decompositions and functions that choose their formula by data."""
    saving = [
        f for f in functions if (name := compat.name_of(f)).startswith("Linalg") or name in CHOOSES_IN_HIGHER_ORDER
    ]
    return [value for function in saving for value in compat.saved_by(function)]


def _may_refuse(function: torch.autograd.graph.Node, targets: list[torch.Tensor]) -> bool:
    """Returns whether a gradient function may raise an error for some data, given gradients of `targets`."""
    vectors = REFUSES_BY_DATA.get(compat.name_of(function))
    if vectors is None:
        return False
    saved = compat.saved_by(function)  # eigenvectors of real symmetric matrices have all their gradients
    is_complex = _has_data(saved) and any(value.is_complex() for value in saved)
    return is_complex and not vectors.isdisjoint(used_results(function, targets))


def _has_data(values: list[torch.Tensor]) -> bool:
    return any(value.dim() for value in values) and not any(map(is_empty, values))


def _views(outputs: Sequence[Any], traced: Sequence[TracedOutput]) -> dict[int, torch.Tensor]:
    """Returns the outputs that the runtime makes as views of results or inputs, by number."""
    kinds = ("view", "member")
    pairs = enumerate(zip(outputs, traced))
    return {i: value for i, (value, output) in pairs if output.kind in kinds and output.has_history}


def _raise_delayed_errors(targets: Iterable[torch.Tensor]) -> None:
    """Raises the error that a `once_differentiable` backward leaves for the second differentiation.

    Autograd does not raise the error when it computes gradients for certain inputs only.
    """
    for function in reachable_functions(targets):
        if compat.name_of(function) == "torch::autograd::Error":
            function(None)  # type: ignore[operator]


def _without_replacement(function: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which a torch function runs itself, even if the program has replaced the function in its
    module.

    A replaced function would look up its name, and pass the replacement to the modes around the call.
    """
    namespace = getattr(function, "__globals__", {})
    is_replaced = namespace.get(getattr(function, "__name__", ""), function) is not function
    return compat.without_torch_function() if is_replaced else contextlib.nullcontext()


class _CheckingInterpreter(LocatingInterpreter):
    """Also traces the checks that torch omits, and runs the nodes in `fallback_nodes` as fallback ops."""

    def __init__(
        self, gm: fx.GraphModule, recorder: LocationRecorder, fallback_nodes: Collection[fx.Node], **marks: Any
    ) -> None:
        super().__init__(gm, recorder, **marks)
        self.fallback_nodes = fallback_nodes
        self.indices = IndexReads()

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in CHECKPOINTS:
            return self.run_checkpoint_body(*args)
        assert_values(target, args, kwargs)
        if self.recorder.current in self.fallback_nodes:
            return run_as_fallback_op(target, args, kwargs)
        if (traced_result := scalar_arguments.call(target, args, kwargs)) is not NotImplemented:
            return traced_result
        if (traced_result := run_with_indices(target, args, self.indices)) is not NotImplemented:
            return traced_result
        args = (*with_ends(target, args),)
        before = self.recorder.newest()
        with _without_replacement(target):
            result = super().call_function(target, args, kwargs)
        traced = self.traced_since(before)
        without_vectors(traced, (args, kwargs), result)
        return kwargs["out"] if write_undeclared_outputs(target, args, kwargs, traced) else result

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.recorder.current in self.fallback_nodes:
            return run_as_fallback_op(method(target), args, kwargs)
        if (traced_result := scalar_arguments.call(target, args, kwargs)) is not NotImplemented:
            return traced_result
        before = self.recorder.newest()
        result = super().call_method(target, args, kwargs)
        without_vectors(self.traced_since(before), (args, kwargs), result)
        return result

    def run_checkpoint_body(self, gm: fx.GraphModule, inputs: tuple[Any, ...]) -> Any:
        """Runs the graph of a checkpoint. The nodes of an inner checkpoint belong to the outermost checkpoint."""
        assert self.recorder.current is not None
        marks = {"checkpoint": self.recorder.current.name, **self.marks}
        return _CheckingInterpreter(gm, self.recorder, self.fallback_nodes, **marks).run(*inputs)

    def traced_since(self, before: fx.Node | None) -> list[fx.Node]:
        """Returns the nodes after `before`, the newest first."""
        return [*itertools.takewhile(lambda node: node is not before, reversed(self.recorder.graph.nodes))]


def _as_fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return mode.from_tensor(value.detach(), static_shapes=True).requires_grad_(value.requires_grad)


def _as_leaf(value: torch.Tensor) -> torch.Tensor:
    # A tensor that is detached outside of inference mode counts writes, even if the original tensor does not.
    with torch.inference_mode(torch.is_inference_mode_enabled() or compat.version_of(value) is None):
        return value.detach().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Runs backward without autocast, as eager does: forward recorded the casts."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _blocks_of_autocast(casts_once: bool) -> Iterator[None]:
    """Lets each autocast block convert a weight once and drop the copy at its end, as outside of a trace.

    In a trace the cache is off, and all blocks are nested in a block that keeps the cache.
    """
    torch.set_autocast_cache_enabled(casts_once)
    torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        torch.autocast_increment_nesting()


def _drop_known_numbers(graph: fx.Graph) -> None:
    """Removes the reads of a number in a tensor where the number is known, as in `x.view(torch.div(8, 2), 2)`."""
    for node in graph.find_nodes(op="call_function", target=compat.READ_NUMBER):
        if "val" not in node.meta:
            graph.erase_node(node)
