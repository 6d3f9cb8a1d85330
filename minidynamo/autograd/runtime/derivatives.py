"""Owns the graphs of derivatives of order one, two, and so on, as functional graphs that run operation by operation.

Each is traced from the captured graph, which autograd differentiates as often as that takes, so it is right whatever
the program does with autograd. What a call has kept is found in it again by the names of
`autograd/functional/value_keys.py`: only what depends on gradients, or was not kept, is computed. Who calls it, and
when, is the business of `double_backward.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.functionalize import functionalize
from minidynamo.autograd.functional.joint_graph import ancestors
from minidynamo.autograd.functional.shape_only_reads import read_inputs
from minidynamo.autograd.functional.value_keys import Symbols, symbols_of, value_keys, written
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.layouts import GradientLayout, strides_follow
from minidynamo.autograd.graph.numbers import is_empty, is_number, is_symbolic, key
from minidynamo.autograd.graph.recomputation import computed_again, is_random, uses_generator
from minidynamo.autograd.partition.rng_replay import draw_from_states
from minidynamo.autograd.runtime.fresh_symbols import renewed
from minidynamo.autograd.trace.joint import Given, Trace, mode_of, trace_joint
from minidynamo.compat import OpOverload
from minidynamo.core.locks import ForkSafeLock
from minidynamo.errors import GraphRefused, first_line
from minidynamo.graph.boxed import BoxedCallable, make_boxed
from minidynamo.graph.torch_settings import Settings, preserved, restore, settings
from minidynamo.graph.unbacked_symints import depends_on_data

_MOST = 16
"""How many derivatives of one kind are kept, if what torch decides about sizes makes that several."""


class NotAvailable(Exception):
    """A derivative cannot be computed; the message is the reason that the user is told."""


@dataclass
class Values:
    """What one call has: `kept` by position; an `input` by number, or NotAvailable; `numbers` by symbol; `tangents` by
    order; the state that the `random` numbers began with, by device, if it is needed."""

    kept: Sequence[torch.Tensor | None]
    input: Callable[[int], torch.Tensor]
    numbers: Mapping[Any, Any]
    tangents: Sequence[Sequence[torch.Tensor | None]]
    random: Mapping[str, torch.Tensor]


class Derivatives:
    """The derivatives of one captured graph, under the settings that are in force now.

    They are traced on the fake values `flat`. `kept` are names of what calls have kept, `kept_for` what each of them
    was kept for, as in a `GraphSignature`: what only results need for which no gradient comes in may be gone. With a
    `refusal`, which says why, there are none.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        layout: InputLayout,
        flat: Sequence[Any],
        decompositions: Callable[[], dict[OpOverload, Callable[..., Any]]],
        kept: tuple[str, ...],
        kept_for: tuple[tuple[int, ...], ...] = (),
        refusal: str = "",
    ) -> None:
        self.gm = gm
        self.layout = layout
        self.flat = flat
        self.decompositions = decompositions
        self.kept = kept
        self.kept_for = kept_for
        self.refusal = refusal
        self.entry: Settings = settings()
        self.symbols: Symbols = symbols_of(flat)
        self.env = mode_of(gm, flat).shape_env if self.symbols else None
        self.decided = len(self.env.guards) if self.env is not None else 0
        self.lock = ForkSafeLock()
        self.known: dict[tuple[Given, ...], list[Derivative]] = {}
        self.latest: dict[tuple[Given, ...], tuple[Mapping[Any, Any], Derivative]] = {}

    def of(self, orders: tuple[Given, ...], numbers: Mapping[Any, Any]) -> Derivative:
        """The derivative for gradients like `orders`; raises NotAvailable if there is none for these numbers."""
        if self.refusal:
            raise NotAvailable(self.refusal)
        with self.lock:
            served, found = self.latest.get(orders, (None, None))
            if found is None or served != numbers:
                known = self.known.setdefault(orders, [])
                found = next((one for one in known if one.serves(numbers)), None)
                if found is None:
                    known.append(found := self.traced(orders, numbers))
                    del known[:-_MOST]
                self.latest[orders] = numbers, found
        return found

    def traced(self, orders: tuple[Given, ...], numbers: Mapping[Any, Any]) -> Derivative:
        """A derivative for these numbers at least, on symbols of its own, on which nothing was decided for others."""
        anew = renewed(self.flat, self.symbols, numbers) if self.symbols else None
        flat, names = anew or (self.flat, {})
        symbols = symbols_of(flat)
        env, decided = (self.env, self.decided) if anew is None else (mode_of(self.gm, flat).shape_env, 0)
        try:
            with preserved():
                restore(self.entry)
                trace = trace_joint(self.gm, self.layout, flat, self.decompositions(), orders)
                with compat.without_autocast():
                    functional = functionalize(trace, self.layout.flat_names(), flat, keeps_numbers=anew is not None)
                    draw_from_states(functional)
        except Exception as error:
            told = error.__cause__ if isinstance(error, GraphRefused) else None  # what torch says
            raise NotAvailable(f"Tracing it failed: {first_line(told or error)}") from error
        decisions = [] if env is None else [guard.expr for guard in env.guards[decided:]]
        found = Derivative(trace, functional, symbols, self.kept_by_then(orders[0]), names, decisions)
        if not found.serves(numbers):
            raise NotAvailable("It was traced for other sizes.")
        return found

    def kept_by_then(self, given: Given) -> dict[str, int]:
        """The place of each value that is there when gradients like `given` come in, by its name."""
        used = {place for place, tangent in enumerate(given) if tangent is not None}
        gone = {i for i, places in enumerate(self.kept_for) if places and used.isdisjoint(places)}
        return {name: i for i, name in enumerate(self.kept) if i not in gone}


class Derivative:
    """One derivative. `differentiable` says for each result whether it has a derivative itself, and `reached` at which
    results of the graph its gradients arrive; `leads_to` has, for places of the inputs with gradients, then of the
    gradients that were handed in, the results that autograd comes there from. `names` has its own symbols for those of
    calls, and `decisions` are what has to hold of them."""

    def __init__(
        self,
        trace: Trace,
        functional: FunctionalGraph,
        symbols: Symbols,
        kept: Mapping[str, int],
        names: Mapping[Any, Any],
        decisions: Sequence[Any],
    ) -> None:
        self.trace = trace
        self.functional = functional
        self.symbols = symbols
        self.differentiable = trace.differentiable
        self.reached = trace.reached
        self.leads_to = trace.leads_to
        self.results = [
            None if node is None else functional.read(functional.values[node]) for node in trace.derivatives
        ]
        self.kept = kept
        self.names = names
        self.decisions = decisions

    def own(self, numbers: Mapping[Any, Any]) -> dict[Any, Any]:
        """What its symbols are in a call."""
        return {self.names.get(symbol, symbol): number for symbol, number in numbers.items()}

    def serves(self, numbers: Mapping[Any, Any]) -> bool:
        """Whether what was decided while it was traced holds in a call."""
        own = self.own(numbers) if self.decisions else {}
        return all(decision.subs(own) == True for decision in self.decisions)  # noqa: E712  # it is an expression

    @functools.cached_property
    def program(self) -> Program:
        """How it is computed."""
        return Program(self)


Provider = Callable[[Values], Any]


class Program:
    """What is left of a derivative when a call has kept some values."""

    def __init__(self, derivative: Derivative) -> None:
        functional = derivative.functional
        self.functional = functional
        self.own = derivative.own
        self.numbers = {node: i for i, node in enumerate(functional.placeholders)}
        self.places = dict(zip(functional.tangents, derivative.trace.handed_in))
        self.graph = functional.emitter.graph
        self.keys = value_keys(functional, derivative.symbols, written if derivative.names else key)
        self.kept = derivative.kept
        self.results = derivative.results
        roots = [node for node in self.results if node is not None]
        self.redraws = False
        self.live = ancestors(roots, self.sources)
        self.redraws = any(is_random(node) and self.keys[node] not in self.kept for node in self.live)
        if self.redraws:  # in the order of the first time
            self.live = ancestors([*roots, *filter(uses_generator, self.graph.nodes)], self.sources)
        self.providers: list[Provider] = []
        self.call = self.build()

    def is_given(self, node: fx.Node) -> bool:
        if self.redraws and uses_generator(node):  # also what was kept: others follow in the generator
            return False
        is_known = is_number(node) and not depends_on_data(node.meta["val"])
        return is_known or self.keys[node] in self.kept or node.op == "placeholder" or is_empty(node.meta["val"])

    def sources(self, node: fx.Node) -> list[fx.Node]:
        return [] if self.is_given(node) else read_inputs(node)

    def build(self) -> BoxedCallable:
        made = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}

        def given(node: fx.Node) -> fx.Node:
            """A placeholder for what is not computed."""
            if node not in env:
                env[node] = made.placeholder(node.name)
                self.providers.append(self.provider(node))
            return env[node]

        ordered = [node for node in self.graph.nodes if node in self.live]
        computed = [node for node in ordered if not self.is_given(node)]
        for node in ordered:
            if self.is_given(node):
                given(node)
        for node in computed:
            for source in node.all_input_nodes:  # of which only the layout, or nothing, matters
                if source not in self.live:
                    given(source)
        for node in computed:
            env[node] = made.node_copy(node, env.__getitem__) if self.redraws else computed_again(made, node, env)
        made.output(tuple(None if node is None else env[node] for node in self.results))
        return make_boxed(compat.graph_module(torch.nn.Module(), made), "derivative")

    def provider(self, node: fx.Node) -> Provider:
        """Where a call has the value of `node`."""
        if is_number(node):
            return functools.partial(_number, node.meta["val"])
        if (place := self.kept.get(self.keys[node])) is not None:
            if not isinstance(node.meta["val"], torch.Tensor) or not strides_follow(node.meta["val"]):
                return lambda values: values.kept[place]  # a number, or a part of what is elsewhere
            lies = GradientLayout(node.meta["val"])  # forward may keep images with channels last
            return lambda values: _fitting(lies, values.kept[place])
        if node not in self.live or is_empty(node.meta["val"]):
            return functools.partial(_stand_in, node.meta["val"])
        if node in self.places:
            order, i = self.places[node]
            fit = GradientLayout(node.meta["val"])
            return lambda values: _fitting(fit, values.tangents[order][i])
        if node in self.functional.constants:
            constant = self.functional.constants[node]
            return lambda values: constant
        number = self.numbers[node]
        return lambda values: values.input(number)

    def run(self, values: Values) -> list[torch.Tensor | None]:
        """The derivative for one call."""
        values = replace(values, numbers=self.own(values.numbers))
        given = [provide(values) for provide in self.providers]
        if not self.redraws:
            return list(self.call(given))
        if not values.random:
            raise NotAvailable("It would draw random numbers again.")
        with torch.random.fork_rng([torch.cuda.current_device()] if "cuda" in values.random else []):
            for device, state in values.random.items():
                _set_random_state(device, state)
            return list(self.call(given))


def random_state(device: str) -> torch.Tensor:
    """The state of the random numbers of a device."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def _set_random_state(device: str, state: torch.Tensor) -> None:
    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _number(number: Any, values: Values) -> Any:
    if not is_symbolic(number):
        return key(number)
    found = key(number).subs(values.numbers)
    if found.free_symbols:
        raise NotAvailable("It depends on a number that was not kept.")
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)](found)


def _stand_in(like: torch.Tensor, values: Values) -> torch.Tensor:
    """A tensor in the layout of one that is asked for nothing else."""
    shape, stride = ([_number(n, values) for n in numbers] for numbers in (like.shape, like.stride()))
    return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)


def _fitting(fit: GradientLayout, gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None, "a derivative was chosen for another set of gradients"
    return fit(gradient, gradient.shape if fit.is_symbolic else None)
