"""Owns the tracing of the joint graph: the forward as the user wrote it and, behind it, the gradients.

The graph still holds in-place and view operations; `functionalize` removes them. Which outputs share memory with which
inputs or with each other is found out by `output_alias_sets.py`, while the traced tensors are at hand.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)

from minidynamo import compat
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.mutation import write_unseen
from minidynamo.autograd.graph.numbers import is_empty, is_symbolic, known
from minidynamo.autograd.graph.provenance import LocatingInterpreter, LocationRecorder
from minidynamo.autograd.trace import scalar_arguments
from minidynamo.autograd.trace.checks import assert_values
from minidynamo.autograd.trace.eigenvalues_only import without_vectors
from minidynamo.autograd.trace.fallback_op import (
    CHOOSES_BY_DATA,
    CHOOSES_LATER,
    REFUSES_BY_DATA,
    NotOpaque,
    method,
    run_opaque,
)
from minidynamo.autograd.trace.full_slices import with_ends
from minidynamo.autograd.trace.grad_graph_queries import (
    functions_behind,
    on_the_way,
    reached,
    saved_results,
    used_results,
    used_up,
    ways,
    zeros_from,
)
from minidynamo.autograd.trace.leaf_order import noting_arrivals
from minidynamo.autograd.trace.output_alias_sets import (
    OutputAliasSet,
    TracedOutput,
    classify,
    find_sources,
    refuse_copies,
)
from minidynamo.autograd.trace.tensor_index import PlacesRead, let_have_symbols
from minidynamo.compat import FakeTensor, FakeTensorMode, OpOverload
from minidynamo.errors import Diagnostic, GraphRefused, MinidynamoError, first_line, summary
from minidynamo.fake import mode as fake_mode
from minidynamo.graph.checkpoint import CHECKPOINTS
from minidynamo.graph.function_results import noting_copies
from minidynamo.graph.tensor_index import reads_places, run_with_places
from minidynamo.graph.torch_settings import is_switch, preserved, restore, settings


@dataclass
class Trace:
    """The joint graph with its parts. `primals` are the tensor inputs by their position in the flat list, `numbers` the
    symbolic ones; `gradients` those of the inputs that require grad, None where nothing flows. `tangents` belong to
    `differentiated`: first the inputs in `mutated_with_grad`, then the families that require grad; `handed_in` has the
    order of each, from 0, and what it is the gradient of, counted among what that order differentiates. `derivatives`
    are what backward of the highest order returns, by inputs, then by all that was, or could have been, handed in for
    earlier orders; `differentiable` says which can be differentiated once more. `kept` are tensors that eager
    keeps for higher derivatives, which backward may not read; `saves`: backward frees what eager keeps for it.
    `used_up` has, for each of several that are differentiated, those that eager cannot differentiate behind it;
    `on_the_way` those that it is computed from with no other between, and `arrivals` what arrives at each of these in
    all; places behind those of what is differentiated are those of outputs that are views. `zeros_from` has, for
    inputs, what is differentiated that gives them zeros, which hang on no gradient, and `zeros_at` for the places of
    `arrivals`. `saved_results` are the places of what eager saves for its own gradient; `reached` are for each of
    `derivatives` the places that gradients of it arrive at. `ways` has, for inputs, what is differentiated that leads
    there, and `leads_to`, for places of the inputs, then of what was handed in, which of `derivatives` lead there.
    `arrived` are the inputs with gradients in the order in which autograd came to them. `between` are tensors that
    stand between outputs and what they share memory with."""

    graph: fx.Graph
    mode: FakeTensorMode
    owner: fx.GraphModule | None = None
    primals: dict[int, fx.Node] = field(default_factory=dict)
    numbers: dict[int, fx.Node] = field(default_factory=dict)
    outputs: list[TracedOutput] = field(default_factory=list)
    between: list[TracedOutput] = field(default_factory=list)
    families: list[OutputAliasSet] = field(default_factory=list)
    mutated_with_grad: dict[int, fx.Node | None] = field(default_factory=dict)
    requires_grad: dict[int, bool] = field(default_factory=dict)
    is_leaf: dict[int, bool] = field(default_factory=dict)
    tangents: list[fx.Node] = field(default_factory=list)
    gradients: dict[int, fx.Node | None] = field(default_factory=dict)
    identities: set[fx.Node] = field(default_factory=set)
    writes: dict[int, int] = field(default_factory=dict)
    handed_in: list[tuple[int, int]] = field(default_factory=list)
    derivatives: list[fx.Node | None] = field(default_factory=list)
    differentiable: tuple[bool, ...] = ()
    kept: list[fx.Node] = field(default_factory=list)
    saves: bool = False
    used_up: tuple[tuple[int, ...], ...] = ()
    on_the_way: tuple[tuple[int, ...], ...] = ()
    arrivals: dict[int, fx.Node | None] = field(default_factory=dict)
    zeros_from: dict[int, tuple[int, ...]] = field(default_factory=dict)
    zeros_at: dict[int, tuple[int, ...]] = field(default_factory=dict)
    saved_results: tuple[int, ...] = ()
    reached: tuple[frozenset[int], ...] = ()
    ways: dict[int, tuple[int, ...]] = field(default_factory=dict)
    leads_to: dict[int, tuple[int, ...]] = field(default_factory=dict)
    arrived: tuple[int, ...] = ()

    @property
    def training(self) -> bool:
        """Whether gradients were traced."""
        return bool(self.tangents)


class _Untraceable(Exception):
    """Derivatives of the torch-level `nodes` cannot be traced, because of `error`: they look into data, say."""

    def __init__(self, nodes: set[fx.Node], error: Exception) -> None:
        super().__init__(nodes, error)
        self.nodes = nodes
        self.error = error


_LOOKS_INTO_DATA = (compat.DataDependentOutput, compat.DynamicOutputShape)


class _WriteToLeaf(Exception):
    """An input that is no leaf for the user was written to while it was traced as a leaf."""


Given: TypeAlias = tuple[bool | None, ...]
"""The gradients that autograd hands in for what is differentiated: None where there is none, else whether the gradient
can be differentiated itself."""


def trace_joint(
    gm: fx.GraphModule,
    layout: InputLayout,
    flat: Sequence[Any],
    decompositions: dict[OpOverload, Callable[..., Any]],
    orders: Sequence[Given] = (),
) -> Trace:
    """Trace `gm` on the fake values `flat`, and its gradients if any result requires grad.

    With `orders`, gradients of gradients, too, up to as many orders; each differentiates what the one before returned
    by the inputs and by the differentiable gradients that were handed in so far. Runs under the grad mode in force.
    Raises GraphRefused MD401 when torch refuses the program, and MD404 when outputs share memory in a way that cannot
    be rebuilt.
    """
    mode = mode_of(gm, flat)
    if any(map(reads_places, gm.graph.nodes)):
        let_have_symbols(mode)
    try:
        leaves = {i: value.is_leaf for i, value in enumerate(flat) if isinstance(value, torch.Tensor)}
        flat = [_as_fake(mode, known(value)) for value in flat]
        attempt = functools.partial(_trace_once, gm, layout, flat, mode, leaves, decompositions, orders)
        # Anomaly mode looks for NaN in gradients that have no data here. Behind hooks autograd does not notice that
        # what it has saved was written to.
        quiet = compat.without_fake_tensor_log()
        with quiet, torch.autograd.set_detect_anomaly(False), compat.no_saved_tensor_hooks():
            return _trace_with_calls(attempt, mode)
    except MinidynamoError:
        raise
    except Exception as error:
        raise untraceable(error) from error


def untraceable(error: Exception) -> GraphRefused:
    """What is raised where torch refuses a program that is run on tensors without data."""
    return GraphRefused(
        Diagnostic(
            "MD401",
            "the graph cannot be traced for autograd",
            why=f"On tensors without data torch raises {summary(error)}",
            fix="Run the function without minidynamo to see whether torch raises the same there.",
        )
    )


def _trace_with_calls(attempt: Callable[[Collection[fx.Node]], Trace], mode: FakeTensorMode) -> Trace:
    """Trace with as few derivatives left as calls as that takes."""
    opaque: set[fx.Node] = set()
    errors: list[Exception] = []
    while True:
        try:
            return _trace_for_sizes(attempt, mode, opaque)
        except _Untraceable as found:
            errors.append(found.error)
            if found.nodes <= opaque:
                raise found.error from None
            opaque |= found.nodes
        except NotOpaque as why:
            raise RuntimeError(f"{first_line(errors[-1])}, and {why}") from errors[-1]


def _trace_for_sizes(
    attempt: Callable[[Collection[fx.Node]], Trace], mode: FakeTensorMode, opaque: Collection[fx.Node]
) -> Trace:
    """Trace by the rules that know symbolic sizes where there are any, if they can."""
    if mode.shape_env is not None:
        with contextlib.suppress(Exception), compat.python_dispatcher():
            return attempt(opaque)
    return attempt(opaque)


def _trace_once(
    gm: fx.GraphModule,
    layout: InputLayout,
    flat: Sequence[Any],
    mode: FakeTensorMode,
    leaves: dict[int, bool],
    decompositions: dict[OpOverload, Callable[..., Any]],
    orders: Sequence[Given],
    opaque: Collection[fx.Node],
) -> Trace:
    try:
        return _Tracing(gm, layout, flat, mode, leaves, orders, opaque, copy_inputs=False).trace(decompositions)
    except _WriteToLeaf:
        return _Tracing(gm, layout, flat, mode, leaves, orders, opaque, copy_inputs=True).trace(decompositions)


def mode_of(gm: fx.GraphModule, values: Sequence[Any]) -> FakeTensorMode:
    """The fake mode of the values that a graph is traced on; a new one if they have none."""
    candidates = [*values, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    known = next((value.fake_mode for value in candidates if isinstance(value, FakeTensor)), None)
    return known or fake_mode.FakeTensorMode()


class _Tracing:
    """One attempt at tracing. With `copy_inputs`, inputs that are no leaves for the user are none here either."""

    def __init__(
        self,
        gm: fx.GraphModule,
        layout: InputLayout,
        flat: Sequence[Any],
        mode: FakeTensorMode,
        leaves: dict[int, bool],
        orders: Sequence[Given],
        opaque: Collection[fx.Node],
        copy_inputs: bool,
    ) -> None:
        self.gm = gm
        self.layout = layout
        self.flat = flat
        self.mode = mode
        self.orders = orders
        self.opaque = opaque
        self.copy_inputs = copy_inputs
        self.tensors = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
        self.numbers = [i for i, value in enumerate(flat) if is_symbolic(value)]
        self.result = Trace(fx.Graph(), mode, is_leaf=leaves)
        self.watchable: dict[int, torch.Tensor] = {}

    def trace(self, decompositions: dict[OpOverload, Callable[..., Any]]) -> Trace:
        self.casts_once = torch.is_autocast_cache_enabled()
        with contextlib.ExitStack() as stack:
            stack.enter_context(compat.keeping_thread_state())  # it may be traced once more after an error
            stack.enter_context(preserved())
            stack.enter_context(compat.traced_lazily())
            given = [self.flat[i] for i in (*self.tensors, *self.numbers)]
            table = fake_mode.Composites({**fake_mode.COMPOSITES, **decompositions})
            traced = make_fx(self.run, decomposition_table=table)(*given)
        trace = self.result
        trace.owner, trace.graph = traced, traced.graph
        _drop_known_numbers(traced.graph)
        if any(is_switch(node.target) for node in self.gm.graph.nodes):
            _name_defaults(traced.graph)
        placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
        trace.primals = dict(zip(self.tensors, placeholders))
        trace.numbers = dict(zip(self.numbers, placeholders[len(self.tensors) :]))
        trace.tangents = placeholders[len(self.tensors) + len(self.numbers) :]
        (output,) = (node for node in traced.graph.nodes if node.op == "output")
        outputs, families, mutated, gradients, trace.kept, arrivals = output.args[0]
        for entry, node in zip((*trace.outputs, *trace.between), outputs):
            entry.node = node
        for family, node in zip(trace.families, families):
            family.node, family.root = node, None
        trace.mutated_with_grad = dict(zip(trace.mutated_with_grad, mutated))
        trace.derivatives = list(gradients)
        trace.gradients = dict(zip(trace.gradients, gradients))
        trace.arrivals = dict(zip(trace.arrivals, arrivals))
        return trace

    def run(self, *values: Any) -> tuple[list[Any], ...]:
        """What is traced: the program, then its gradients. Returns outputs, families, mutated inputs, gradients,
        what eager keeps for decompositions, and the gradients of results that others are computed from."""
        mode = get_proxy_mode()
        assert mode is not None
        self.tracer: Any = mode.tracer
        recorder = self.recorder = LocationRecorder(self.tracer.graph, again=bool(self.orders))
        with self.mode:
            leaves = dict(zip(self.tensors, map(_as_leaf, values)))
            inputs = {i: self.as_input(i, leaf) for i, leaf in leaves.items()}
            histories = {i: value.grad_fn for i, value in inputs.items()}
            versions = {i: count for i, value in inputs.items() if (count := compat.version_of(value)) is not None}
            numbers = dict(zip(self.numbers, values[len(self.tensors) :]))
            given = [inputs.get(i, numbers.get(i, value)) for i, value in enumerate(self.flat)]
            before = settings()
            # Before the program runs: an input that it writes to may require grad afterwards, and has no gradient.
            wanted = {i: leaf for i, leaf in leaves.items() if leaf.requires_grad}
            with _blocks_of_autocast(self.casts_once), noting_copies() as copies:
                outputs = self.run_forward(recorder, given)
            refuse_copies(copies, outputs, inputs)
            restore(before)
            mutated = {i: v for i, v in inputs.items() if v.grad_fn is not histories[i]}
            self.result.writes = {i: inputs[i]._version - count for i, count in versions.items()}
            self.result.outputs, families = classify(outputs, inputs)
            self.result.families = families
            between, self.result.between = find_sources(outputs, self.result.outputs, families, inputs)
            targets = [*mutated.values(), *(f.root for f in families if f.requires_grad and f.root is not None)]
            sources = {i: leaf for i, leaf in wanted.items() if leaf.requires_grad} if targets else {}
            functions = functions_behind(targets)
            self.result.saves = any(map(compat.runs_once, functions))
            if len(targets) > 1:
                self.result.used_up = used_up(targets)
            self.watchable = dict(enumerate(targets))
            if sources:
                self.watchable |= _views(outputs, self.result.outputs, len(targets))
            if sources and not self.orders:
                self.result.on_the_way = on_the_way(targets, self.watchable)
                self.result.saved_results = saved_results(targets)
            watched = sorted({place for places in self.result.on_the_way for place in places})
            self.result.arrivals = dict.fromkeys(watched)
            kept = [] if self.orders else _kept_for_derivatives(functions)
            with compat.without_autocast():  # which holds for what the program computes forward
                arrived = [] if self.orders else noting_arrivals(sources)
                gradients = self.run_backward(targets, list(sources.values()))
                self.result.arrived = tuple(arrived)
                if not self.orders:
                    if len(targets) > 1 or any(gradient is None for gradient in gradients):
                        self.result.ways = ways(targets, sources)
                    arriving = {place: self.watchable[place] for place in watched}
                    self.result.zeros_from = zeros_from(targets, sources, gradients, self.tracer)
                    self.result.zeros_at = zeros_from(targets, arriving, gradients[len(sources) :], self.tracer)
            recorder.end()
        self.result.mutated_with_grad = dict.fromkeys(mutated)
        self.result.requires_grad = {i: value.requires_grad for i, value in inputs.items()}
        self.result.gradients = dict.fromkeys(sources)
        asked = len(gradients) - len(self.result.arrivals)
        gradients, arrivals = gradients[:asked], gradients[asked:]
        return [*outputs, *between], [f.root for f in families], list(mutated.values()), gradients, kept, arrivals

    def as_input(self, index: int, leaf: torch.Tensor) -> torch.Tensor:
        if not self.copy_inputs or not leaf.requires_grad or self.result.is_leaf[index]:
            return leaf
        copy = leaf.clone()
        node = next(iter(reversed(self.tracer.graph.nodes)))
        self.result.identities.add(node)
        return copy

    def run_forward(self, recorder: LocationRecorder, given: list[Any]) -> list[Any]:
        try:
            outputs = _CheckingInterpreter(self.gm, recorder, self.opaque).run(*self.layout.unflatten(given))
        except RuntimeError as error:
            if "a leaf Variable that requires grad" in str(error) and not self.copy_inputs:
                raise _WriteToLeaf from error
            raise
        recorder.enter(None)
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]

    def run_backward(self, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> list[torch.Tensor | None]:
        made: list[torch.Tensor | None] = [*targets]
        slots: list[torch.Tensor | None] = [*sources, *(self.watchable[i] for i in self.result.arrivals)]
        with _no_autocast():
            for order, given in enumerate(self.orders or [(False,) * len(targets)] * bool(targets)):
                tangents = self.tangents(order, made, given)
                asked = {i: value for i, value in enumerate(made) if i in tangents and value is not None}
                made = self.differentiated(list(asked.values()), slots, list(tangents.values()), first=order == 0)
                slots += [tangents[i] if differs and i in tangents else None for i, differs in enumerate(given)]
        again = made[: len(made) - len(self.result.arrivals)]
        self.result.differentiable = tuple(value is not None and value.requires_grad for value in again)
        if self.orders:
            self.result.reached = reached(again, self.watchable)
            asked = {place: slot for place, slot in enumerate(slots) if slot is not None}
            made_for = [place for place, value in enumerate(again) if value is not None]
            found = ways([value for value in again if value is not None], asked)
            # What a function of the user's returns that is differentiable once leads to an error only.
            everywhere = {} if any(found.values()) else dict.fromkeys(asked, tuple(made_for))
            self.result.leads_to = everywhere or {i: tuple(made_for[k] for k in values) for i, values in found.items()}
        return made

    def tangents(self, order: int, targets: Sequence[torch.Tensor | None], given: Given) -> dict[int, torch.Tensor]:
        """The gradients that autograd hands in for an order, by what they belong to."""
        found = {}
        for i, (target, differentiable) in enumerate(zip(targets, given, strict=True)):
            if target is not None and differentiable is not None and (order == 0 or target.requires_grad):
                self.result.handed_in.append((order, i))
                found[i] = self.tangent(f"{order}_{i}" if order else f"{i}", target, differentiable)
        return found

    def differentiated(
        self,
        targets: list[torch.Tensor],
        slots: list[torch.Tensor | None],
        tangents: list[torch.Tensor],
        *,
        first: bool,
    ) -> list[torch.Tensor | None]:
        """The gradients by what is in `slots`."""
        if not targets:
            return [None] * len(slots)
        if self.orders:
            _raise_delayed_errors(targets)
        self.refuse_choices(targets, first=first)
        sources = [source for source in slots if source is not None]
        again = bool(self.orders)
        keeps = again or len(targets) > 1
        try:
            made = iter(torch.autograd.grad(targets, sources, tangents, keeps, again, allow_unused=True))
        except Exception as error:
            # Whatever else a first derivative raises, eager may raise as well: of a value that was overwritten, say.
            if self.recorder.current is None or not (again or isinstance(error, _LOOKS_INTO_DATA)):
                raise
            raise _Untraceable({self.recorder.current}, error) from error
        return [None if source is None else next(made) for source in slots]

    def refuse_choices(self, targets: list[torch.Tensor], *, first: bool) -> None:
        """Have derivatives that look into data, but would not say so, run as calls."""
        known = self.recorder.known.items()
        nodes = {maker for function, maker in known if self.chooses(function)}
        if first:  # whose gradients are all right, those of higher orders are
            nodes |= {maker for function, maker in known if _refuses(function, targets)}
        if nodes - {*self.opaque}:
            raise _Untraceable(nodes, RuntimeError("a formula is chosen by data"))

    def chooses(self, function: torch.autograd.graph.Node) -> bool:
        """Whether a gradient function takes another formula where there is no data."""
        names = CHOOSES_LATER if self.orders else CHOOSES_BY_DATA
        return compat.name_of(function) in names and _has_data(compat.saved_by(function))

    def tangent(self, name: str, target: torch.Tensor, differentiable: bool) -> torch.Tensor:
        """A gradient that autograd hands in for `target`."""
        with disable_proxy_modes_tracing():
            # Autograd hands in gradients of the target's shape; strides it does not promise, the runtime does.
            tangent = torch.empty_like(target.detach()).requires_grad_(differentiable)
        proxy = self.tracer.create_proxy("placeholder", f"tangents_{name}", (), {})
        track_tensor_tree(tangent, proxy, constant=None, tracer=self.tracer)
        return tangent


def _kept_for_derivatives(functions: Iterable[torch.autograd.graph.Node]) -> list[torch.Tensor]:
    """What `functions` have saved where higher derivatives read more of it than backward: of matrix decompositions, and
    where formulas are chosen by data."""
    chosen = [f for f in functions if (name := compat.name_of(f)).startswith("Linalg") or name in CHOOSES_LATER]
    return [value for function in chosen for value in compat.saved_by(function)]


def _refuses(function: torch.autograd.graph.Node, targets: list[torch.Tensor]) -> bool:
    """Whether a gradient function may raise an error where there is data, given gradients of `targets`."""
    vectors = REFUSES_BY_DATA.get(compat.name_of(function))
    if vectors is None:
        return False
    saved = compat.saved_by(function)  # vectors of what is real and symmetric have all their gradients
    is_complex = _has_data(saved) and any(value.is_complex() for value in saved)
    return is_complex and not vectors.isdisjoint(used_results(function, targets))


def _has_data(values: list[torch.Tensor]) -> bool:
    return any(value.dim() for value in values) and not any(map(is_empty, values))


def _views(outputs: Sequence[Any], traced: Sequence[TracedOutput], first: int) -> dict[int, torch.Tensor]:
    """The outputs that the runtime makes as views of others or of inputs, by places from `first` on."""
    return {
        first + i: value
        for i, (value, output) in enumerate(zip(outputs, traced))
        if output.kind in ("view", "member") and output.has_history
    }


def _raise_delayed_errors(targets: Iterable[torch.Tensor]) -> None:
    """Raise what a backward that is differentiable once leaves for whoever differentiates its gradients; autograd does
    not ask for it on the way to certain inputs only."""
    for function in functions_behind(targets):
        if compat.name_of(function) == "torch::autograd::Error":
            function(None)  # type: ignore[operator]


def _itself(function: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which a function of torch runs itself, also where the program has replaced it in its module.

    Such a function gives itself to the modes around it by its name there, and would give them the replacement.
    """
    namespace = getattr(function, "__globals__", {})
    is_replaced = namespace.get(getattr(function, "__name__", ""), function) is not function
    return compat.without_torch_function() if is_replaced else contextlib.nullcontext()


class _CheckingInterpreter(LocatingInterpreter):
    """Also traces the checks that torch leaves out, and the nodes in `opaque` as operations that are."""

    def __init__(
        self, gm: fx.GraphModule, recorder: LocationRecorder, opaque: Collection[fx.Node], **around: Any
    ) -> None:
        super().__init__(gm, recorder, **around)
        self.opaque = opaque
        self.places = PlacesRead()

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in CHECKPOINTS:
            return self.run_inside(*args)
        assert_values(target, args, kwargs)
        if self.recorder.current in self.opaque:
            return run_opaque(target, args, kwargs)
        if (made := scalar_arguments.call(target, args, kwargs)) is not NotImplemented:
            return made
        if (made := run_with_places(target, args, self.places)) is not NotImplemented:
            return made
        args = (*with_ends(target, args),)
        before = self.recorder.newest()
        with _itself(target):
            result = super().call_function(target, args, kwargs)
        traced = self.traced_since(before)
        without_vectors(traced, (args, kwargs), result)
        return kwargs["out"] if write_unseen(target, args, kwargs, traced) else result

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.recorder.current in self.opaque:
            return run_opaque(method(target), args, kwargs)
        if (made := scalar_arguments.call(target, args, kwargs)) is not NotImplemented:
            return made
        before = self.recorder.newest()
        result = super().call_method(target, args, kwargs)
        without_vectors(self.traced_since(before), (args, kwargs), result)
        return result

    def run_inside(self, gm: fx.GraphModule, inputs: tuple[Any, ...]) -> Any:
        """Run the graph of a checkpoint. What belongs to it belongs to the outermost one."""
        assert self.recorder.current is not None
        around = {"checkpoint": self.recorder.current.name, **self.around}
        return _CheckingInterpreter(gm, self.recorder, self.opaque, **around).run(*inputs)

    def traced_since(self, before: fx.Node | None) -> list[fx.Node]:
        """The nodes behind `before`, the newest first."""
        return [*itertools.takewhile(lambda node: node is not before, reversed(self.recorder.graph.nodes))]


def _as_fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return mode.from_tensor(value.detach(), static_shapes=True).requires_grad_(value.requires_grad)


def _as_leaf(value: torch.Tensor) -> torch.Tensor:
    # What is detached outside of inference mode counts writes, also of a tensor that does not.
    with torch.inference_mode(torch.is_inference_mode_enabled() or compat.version_of(value) is None):
        return value.detach().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Backward runs without autocast in eager as well: the casts were recorded in forward."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _blocks_of_autocast(casts_once: bool) -> Iterator[None]:
    """Inside, a block of autocast converts each weight once and forgets it at its end, as outside of a trace: there the
    cache is off, and all blocks lie in one that keeps it."""
    torch.set_autocast_cache_enabled(casts_once)
    torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        torch.autocast_increment_nesting()


def _drop_known_numbers(graph: fx.Graph) -> None:
    """Drop what reads the number in a tensor where that is known, as in `x.view(torch.div(8, 2), 2)`."""
    for node in graph.find_nodes(op="call_function", target=compat.READ_NUMBER):
        if "val" not in node.meta:
            graph.erase_node(node)


def _name_defaults(graph: fx.Graph) -> None:
    """Write dtype and device into calls that make tensors: the program chose other defaults for them on the way."""
    for node in graph.nodes:
        made = node.meta.get("val")
        if not isinstance(node.target, OpOverload) or node.all_input_nodes or not isinstance(made, torch.Tensor):
            continue
        taken = {argument.name for argument in compat.schema_of(node.target).arguments}
        defaults = {"dtype": made.dtype, "device": made.device}
        if taken >= defaults.keys():
            node.kwargs = {**defaults, **{name: value for name, value in node.kwargs.items() if value is not None}}
