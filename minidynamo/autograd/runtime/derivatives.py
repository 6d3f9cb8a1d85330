"""Owns the graphs of derivatives of each order, as functional graphs that run operation by operation.

Each graph is traced from the captured graph, differentiated by autograd as often as necessary, so the program may use
autograd in any way. The values that a call keeps are found in the graph by the names of
`autograd/functional/value_keys.py`; the graph computes only the other values. `double_backward.py` calls the
derivatives.

A condition on a symbol that a trace decides holds for every later trace with that symbol. Torch's formulas for some
second derivatives decide all sizes, so these derivatives are traced once per size, on fake inputs with fresh symbols.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.functionalize import functionalize
from minidynamo.autograd.functional.joint_graph import ancestors
from minidynamo.autograd.functional.shape_only_reads import read_inputs
from minidynamo.autograd.functional.value_keys import Symbols, expression_as_traced, numbers_in, symbols_of, value_keys
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.layouts import GradientLayout, strides_follow
from minidynamo.autograd.graph.numbers import is_empty, is_number, is_symbolic, key, simplified
from minidynamo.autograd.graph.recomputation import copy_recomputed, is_random, uses_generator
from minidynamo.autograd.partition.rng_replay import draw_from_states
from minidynamo.autograd.trace.joint import TangentKinds, Trace, mode_of, trace_joint
from minidynamo.autograd.trace.tensor_index import add_shape_env
from minidynamo.compat import OpOverload
from minidynamo.core.locks import ForkSafeLock
from minidynamo.core.records import record
from minidynamo.errors import GraphRefused, first_line
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.boxed import BoxedCallable, make_boxed
from minidynamo.graph.torch_settings import Settings, preserved, restore, settings
from minidynamo.graph.unbacked_symints import depends_on_data


def with_fresh_symbols(
    flat: Sequence[Any], symbols: Symbols, numbers: Mapping[Any, Any]
) -> tuple[list[Any], dict[Any, Any]] | None:
    """Returns the fake inputs `flat` with fresh symbols in place of `symbols`, and a map from old to fresh symbols. The
    hints of the fresh symbols are the `numbers` of one call.

    Returns None if a number is not an integer, a symbol has no value, or a tensor has a special layout.
    """
    found = {symbol for value in flat for _, _, number in numbers_in(value) for symbol in _symbols(number)}
    if not found <= numbers.keys() or not all(type(numbers[symbol]) is int for symbol in found):
        return None
    if not all(map(_is_plain, flat)):
        return None
    kinds, source = compat.symbolic().DimDynamic, compat.symbolic().NamedSource
    mode = FakeTensorMode()
    add_shape_env(mode)
    env: Any = mode.shape_env
    new_symbols = {
        symbol: env.create_symbol(numbers[symbol], source("_".join(map(str, symbols[symbol]))), kinds.DYNAMIC)
        for symbol in sorted(found, key=str)
    }

    def fresh(number: Any) -> Any:
        if not is_symbolic(number):
            return simplified(number)
        expr = key(number)
        return env.create_symintnode(expr.xreplace(new_symbols), hint=int(expr.xreplace(dict(numbers))))

    return [_fresh(value, fresh, mode) for value in flat], new_symbols


def _symbols(number: Any) -> set[Any]:
    return key(number).free_symbols if is_symbolic(number) else set()


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return not isinstance(value, torch.SymFloat | torch.SymBool)
    special = value.is_conj() or value.is_neg() or value.is_inference() or value.storage_offset()
    return value.layout is torch.strided and not special


def _fresh(value: Any, number: Callable[[Any], Any], mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return number(value)
    with mode, torch.no_grad():
        sizes, strides = [*map(number, value.shape)], [*map(number, value.stride())]
        tensor = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    tensor.requires_grad_(value.requires_grad)
    with mode, torch.enable_grad():
        return tensor if value.is_leaf else tensor.view_as(tensor)


_MOST_DERIVATIVES = 16
"""Derivatives kept for one tuple of orders, if decisions of torch about sizes make several necessary."""


class NotAvailable(Exception):
    """A derivative cannot be computed; the message is the reason shown to the user."""


@record
class Values:
    """Arguments of a derivative in one call."""

    #: Kept values by position; None for freed values.
    kept: Sequence[torch.Tensor | None]
    #: Returns a held input by number; raises NotAvailable.
    input: Callable[[int], torch.Tensor]
    #: Values of symbols.
    numbers: Mapping[Any, Any]
    #: Tangents, by order, then by index of the differentiated value.
    tangents: Sequence[Sequence[torch.Tensor | None]]
    #: Generator states before forward, by device type; only for derivatives with random numbers.
    random: Mapping[str, torch.Tensor]


class Derivatives:
    """The derivatives of one captured graph, under the present settings.

    All derivatives are traced with the fake values `flat`. `kept` has the names of the kept values, in order. `inputs`
    and `readers` are those of `NodeGraph`: a value needed only by unused results may be freed. A `refusal` is the
    reason why there are no derivatives.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        layout: InputLayout,
        flat: Sequence[Any],
        decompositions: Callable[[], dict[OpOverload, Callable[..., Any]]],
        kept: tuple[str, ...],
        inputs: Sequence[int] = (),
        readers: tuple[tuple[int, ...], ...] = (),
        refusal: str = "",
    ) -> None:
        self.gm = gm
        self.layout = layout
        self.flat = flat
        self.decompositions = decompositions
        self.kept = kept
        self.inputs = inputs
        self.readers = readers
        self.refusal = refusal
        #: Settings of torch under which the graph was captured.
        self.initial_settings: Settings = settings()
        self.symbols: Symbols = symbols_of(flat)
        self.env = mode_of(gm, flat).shape_env if self.symbols else None
        #: Number of decisions about the original symbols, before any derivative was traced.
        self.decided = len(self.env.guards) if self.env is not None else 0
        self.lock = ForkSafeLock()
        #: Derivatives by their orders, at most _MOST_DERIVATIVES each.
        self.known: dict[tuple[TangentKinds, ...], list[Derivative]] = {}
        #: By orders: numbers of the latest call, and its derivative.
        self.latest: dict[tuple[TangentKinds, ...], tuple[Mapping[Any, Any], Derivative]] = {}

    def find(self, orders: tuple[TangentKinds, ...], numbers: Mapping[Any, Any]) -> Derivative:
        """Returns the derivative for tangents of these `orders`; raises NotAvailable if tracing fails for these
        numbers."""
        if self.refusal:
            raise NotAvailable(self.refusal)
        with self.lock:
            latest_numbers, derivative = self.latest.get(orders, (None, None))
            if derivative is None or latest_numbers != numbers:
                known = self.known.setdefault(orders, [])
                derivative = next((candidate for candidate in known if candidate.applies_to(numbers)), None)
                if derivative is None:
                    known.append(derivative := self.traced(orders, numbers))
                    del known[:-_MOST_DERIVATIVES]
                self.latest[orders] = numbers, derivative
        return derivative

    def traced(self, orders: tuple[TangentKinds, ...], numbers: Mapping[Any, Any]) -> Derivative:
        """Traces a derivative that is valid for these numbers, and perhaps for others. With fresh symbols, the
        decisions of other traces do not apply."""
        fresh = with_fresh_symbols(self.flat, self.symbols, numbers) if self.symbols else None
        flat, fresh_symbols = fresh or (self.flat, {})
        symbols = symbols_of(flat)
        env, decided = (self.env, self.decided) if fresh is None else (mode_of(self.gm, flat).shape_env, 0)
        try:
            with preserved():
                restore(self.initial_settings)
                trace = trace_joint(self.gm, self.layout, flat, self.decompositions(), orders, self.inputs)
                with compat.without_autocast():
                    functional = functionalize(trace, self.layout.flat_names(), flat, keeps_numbers=fresh is not None)
                    draw_from_states(functional)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, GraphRefused) else None  # the error that torch raised
            raise NotAvailable(f"Tracing it failed: {first_line(cause or error)}") from error
        decisions = [] if env is None else [guard.expr for guard in env.guards[decided:]]
        derivative = Derivative(
            trace, functional, symbols, self.available_positions(orders[0]), fresh_symbols, decisions
        )
        if not derivative.applies_to(numbers):
            raise NotAvailable("It was traced for other sizes.")
        return derivative

    def available_positions(self, kinds: TangentKinds) -> dict[str, int]:
        """Returns, by name, the positions of the kept values that are alive in a backward with such tangents."""
        used = {index for index, kind in enumerate(kinds) if kind is not None}
        freed = {i for i, indices in enumerate(self.readers) if indices and used.isdisjoint(indices)}
        return {name: i for i, name in enumerate(self.kept) if i not in freed}


class Derivative:
    """A derivative with the symbols and decisions of the trace."""

    def __init__(
        self,
        trace: Trace,
        functional: FunctionalGraph,
        symbols: Symbols,
        kept: Mapping[str, int],
        fresh_symbols: Mapping[Any, Any],
        decisions: Sequence[Any],
    ) -> None:
        self.trace = trace
        self.functional = functional
        self.symbols = symbols
        #: Per result: whether the result has a derivative.
        self.differentiable = trace.differentiable
        #: Per result: indices of the graph's results reached by gradients of the derivative.
        self.reached_results = trace.reached_results
        #: By index of an input with a gradient, then of a tangent: the results that depend on it.
        self.reaching_derivatives = trace.reaching_derivatives
        #: Per result: its node; None for no gradient.
        self.results = [
            None if node is None else functional.read(functional.values[node]) for node in trace.derivatives
        ]
        #: Positions of kept values, by name.
        self.kept = kept
        #: Fresh symbol of each symbol of the captured graph; empty without fresh symbols.
        self.fresh_symbols = fresh_symbols
        #: Conditions that must hold in a call, in symbols of the derivative.
        self.decisions = decisions

    def own_symbols(self, numbers: Mapping[Any, Any]) -> dict[Any, Any]:
        """Returns the values of the derivative's symbols in a call."""
        return {self.fresh_symbols.get(symbol, symbol): number for symbol, number in numbers.items()}

    def applies_to(self, numbers: Mapping[Any, Any]) -> bool:
        """Returns whether the decisions of the trace hold in a call."""
        own_symbols = self.own_symbols(numbers) if self.decisions else {}
        return all(decision.subs(own_symbols) == True for decision in self.decisions)  # noqa: E712  # sympy expression

    @functools.cached_property
    def program(self) -> Program:
        """Builds the graph of the derivative at first use."""
        return Program(self)


Provider = Callable[[Values], Any]


class Program:
    """Computes a derivative from the values kept by a call."""

    def __init__(self, derivative: Derivative) -> None:
        functional = derivative.functional
        self.functional = functional
        self.own_symbols = derivative.own_symbols
        #: Numbers of inputs, by placeholder.
        self.numbers = {node: i for i, node in enumerate(functional.placeholders)}
        #: (order, index) of tangents, by placeholder.
        self.tangent_indices = dict(zip(functional.tangents, derivative.trace.tangent_targets))
        self.graph = functional.emitter.graph
        #: Names of values, by node.
        self.keys = value_keys(
            functional, derivative.symbols, expression_as_traced if derivative.fresh_symbols else key
        )
        self.kept = derivative.kept
        self.results = derivative.results
        roots = [node for node in self.results if node is not None]
        #: Whether a random number must be drawn again; then all draws are repeated, in order.
        self.draws_again = False
        #: Nodes needed for results.
        self.live = ancestors(roots, self.sources)
        self.draws_again = any(is_random(node) and self.keys[node] not in self.kept for node in self.live)
        if self.draws_again:  # in the order of forward
            self.live = ancestors([*roots, *filter(uses_generator, self.graph.nodes)], self.sources)
        #: One getter per argument of `call`.
        self.providers: list[Provider] = []
        self.call = self.build()

    def is_argument(self, node: fx.Node) -> bool:
        """Returns whether the value of a node is an argument of the derivative, not computed in it."""
        if self.draws_again and uses_generator(node):  # kept draws too: later draws depend on them
            return False
        is_known = is_number(node) and not depends_on_data(node.meta["val"])
        return is_known or self.keys[node] in self.kept or node.op == "placeholder" or is_empty(node.meta["val"])

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """Returns the nodes needed to compute `node`."""
        return [] if self.is_argument(node) else read_inputs(node)

    def build(self) -> BoxedCallable:
        """Builds the graph that computes the results from its arguments."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}

        def add_argument(node: fx.Node) -> None:
            """Adds a placeholder for the value of `node`, if there is none."""
            if node not in env:
                env[node] = graph.placeholder(node.name)
                self.providers.append(self.provider(node))

        ordered = [node for node in self.graph.nodes if node in self.live]
        computed = [node for node in ordered if not self.is_argument(node)]
        for node in ordered:
            if self.is_argument(node):
                add_argument(node)
        for node in computed:
            for source in node.all_input_nodes:  # only the layout of the remaining sources is read
                if source not in self.live:
                    add_argument(source)
        for node in computed:
            env[node] = (
                graph.node_copy(node, env.__getitem__) if self.draws_again else copy_recomputed(graph, node, env)
            )
        graph.output(tuple(None if node is None else env[node] for node in self.results))
        return make_boxed(compat.graph_module(torch.nn.Module(), graph), "derivative")

    def provider(self, node: fx.Node) -> Provider:
        """Builds a getter for the value of `node` in a call."""
        if is_number(node):
            return functools.partial(_number, node.meta["val"])
        if (position := self.kept.get(self.keys[node])) is not None:
            if not isinstance(node.meta["val"], torch.Tensor) or not strides_follow(node.meta["val"]):
                return lambda values: values.kept[position]  # a number, or strides with gaps
            layout = GradientLayout(node.meta["val"])  # forward may save images with channels last
            return lambda values: _laid_out(layout, values.kept[position])
        if node not in self.live or is_empty(node.meta["val"]):
            return functools.partial(_empty_like, node.meta["val"])
        if node in self.tangent_indices:
            order, i = self.tangent_indices[node]
            layout = GradientLayout(node.meta["val"])
            return lambda values: _laid_out(layout, values.tangents[order][i])
        if node in self.functional.constants:
            constant = self.functional.constants[node]
            return lambda values: constant
        number = self.numbers[node]
        return lambda values: values.input(number)

    def run(self, values: Values) -> list[torch.Tensor | None]:
        """Returns the derivative for one call."""
        values = replace(values, numbers=self.own_symbols(values.numbers))
        arguments = [provide(values) for provide in self.providers]
        if not self.draws_again:
            return list(self.call(arguments))
        if not values.random:
            raise NotAvailable("It would draw random numbers again.")
        with torch.random.fork_rng([torch.cuda.current_device()] if "cuda" in values.random else []):
            for device, state in values.random.items():
                _set_random_state(device, state)
            return list(self.call(arguments))


def random_state(device: str) -> torch.Tensor:
    """Returns the state of the generator of a device."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def _set_random_state(device: str, state: torch.Tensor) -> None:
    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _number(number: Any, values: Values) -> Any:
    if not is_symbolic(number):
        return key(number)
    value = key(number).subs(values.numbers)
    if value.free_symbols:
        raise NotAvailable("It depends on a number that was not kept.")
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)](value)


def _empty_like(like: torch.Tensor, values: Values) -> torch.Tensor:
    """Returns an uninitialized tensor with the layout of `like`; only the layout is read."""
    shape, stride = ([_number(n, values) for n in numbers] for numbers in (like.shape, like.stride()))
    return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)


def _laid_out(layout: GradientLayout, gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None, "a derivative was chosen for other gradients"
    return layout(gradient, gradient.shape if layout.is_symbolic else None)
