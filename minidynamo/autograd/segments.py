"""Owns graphs that are compiled in segments, separated by a `cond`, by calls that autograd must see, and by switches of
the inference mode.

A `cond` becomes a choice between two compiled graphs. A call that autograd must see (`graph/autograd_calls.py`) runs
unchanged. Each segment runs in the inference mode of its position. Autograd joins the segments like any functions, so
each segment, and each branch, is differentiated, saves and frees separately. Nothing here compiles: `aot.py` compiles
graphs without cuts.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.provenance import line_of_node
from minidynamo.autograd.trace.joint import untraceable
from minidynamo.autograd.trace.scalar_arguments import with_hints
from minidynamo.compat import FakeTensor, without_fake_tensor_log
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.fake.mode import FakeTensorMode, real_tensors_in_calls
from minidynamo.graph.autograd_calls import is_autograd_call, require_grad, returns_several, watched_tensors
from minidynamo.graph.boxed import BoxedCallable, make_boxed, mark_boxed
from minidynamo.graph.collectives import move_waits
from minidynamo.graph.higher_order import CHECKPOINTS, is_cond, run_branch, subgraphs_of
from minidynamo.graph.marks import FROM_DATA, RAISES
from minidynamo.graph.torch_settings import (
    Call,
    Settings,
    is_switch,
    preserved,
    restore,
    settings,
    switches_between,
    switches_inference,
)
from minidynamo.graph.unbacked_symints import backed_number, fixes_any, with_first_indices

CompileGraph = Callable[[fx.GraphModule, Sequence[Any]], BoxedCallable]
Environment = dict[fx.Node, Any]


@record
class _Step:
    """A part of the graph: a callable, or two callables and a node as condition."""

    #: Argument nodes; some may be constants.
    inputs: tuple[Any, ...]
    #: One per result; None if the result is unused.
    outputs: tuple[fx.Node | None, ...]
    #: One callable, or two for true and false.
    calls: tuple[BoxedCallable, ...]
    #: The torch settings before and after the step.
    settings: Settings
    #: The node that chooses the callable.
    pred: fx.Node | None = None
    #: Inputs that are freed by the step.
    dying: tuple[fx.Node, ...] = ()

    @property
    def used(self) -> set[fx.Node]:
        """The nodes whose values the step reads."""
        return {node for node in (*self.inputs, self.pred) if isinstance(node, fx.Node)}

    def run(self, values: Environment) -> None:
        """Runs the step on `values`, and adds its results."""
        call = self.calls[0] if self.pred is None or values[self.pred] else self.calls[1]
        arguments = [values[node] if isinstance(node, fx.Node) else node for node in self.inputs]
        for node in self.dying:
            del values[node]
        for output, result in zip(self.outputs, call(arguments)):
            if output is not None:
                values[output] = result


def has_cuts(gm: fx.GraphModule) -> bool:
    """Returns whether the graph must be compiled in segments."""
    return any(_is_cut(gm, node) for node in gm.graph.nodes)


def _is_cut(gm: fx.GraphModule, node: fx.Node) -> bool:
    if is_cond(node) or is_autograd_call(node) or switches_inference(node.target) or FROM_DATA in node.meta:
        return True
    return node.target in CHECKPOINTS and has_cuts(_subgraph(gm, node.args[0]))


def _subgraph(gm: fx.GraphModule, node: Any) -> fx.GraphModule:
    subgraph = gm.get_submodule(node.target)
    assert isinstance(subgraph, fx.GraphModule)
    return subgraph


def compile_segments(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: CompileGraph) -> BoxedCallable:
    """Returns a boxed callable that runs `gm`; `compile_graph` compiles each segment.

    Raises GraphRefused MD406 if a value other than a tensor lives across a cut, and MD404 if autograd must know that a
    view is older than a write.
    """
    for node in gm.graph.find_nodes(op="call_function", target=require_grad):
        _check_views(gm, node)
    move_waits(gm.graph)
    with preserved():
        return _Segments(gm, compile_graph).compile(example_inputs)


def _check_views(gm: fx.GraphModule, required: fx.Node) -> None:
    """Raises GraphRefused for a view that is older than the last write to its base, and is used after the base starts
    to require grad.

    Autograd creates a new history for such a view at the write, but a segment returns its views after all writes.
    """
    position = {node: i for i, node in enumerate(gm.graph.nodes)}
    tensor = required.args[0]
    memory = _memory(required)
    writes = [
        i for node, i in position.items() if memory in node.meta.get("written_memory", ()) and i < position[required]
    ]
    for node, i in position.items() if writes else ():
        is_older = i < max(writes) and i not in writes and node is not tensor and _memory(node) == memory
        if is_older and any(position[user] > position[required] for user in node.users):
            raise GraphRefused(
                Diagnostic(
                    "MD404",
                    "a tensor requires grad after a write, and an earlier view is used",
                    why="Autograd creates a new history for such a view.",
                    fix="Call `requires_grad_()` first, or make the view after it.",
                    where=line_of_node(required),
                )
            )


def _memory(node: Any) -> object:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return compat.memory_of(value) if isinstance(value, torch.Tensor) else None


def _with_delayed_items(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Yields the nodes of a graph; the computation of a number from tensors is delayed until its first use.

    It is not delayed where the number could change, or where more work would precede an error that Python raises.
    """
    delayed: dict[fx.Node, None] = {}
    for node in gm.graph.nodes:
        if FROM_DATA in node.meta:
            delayed[node] = None
            continue
        if delayed and (_is_cut(gm, node) or node.op == "output" or _depends_on(node, delayed)):
            yield from delayed
            delayed = {}
        yield node
    yield from delayed


def _depends_on(node: fx.Node, delayed: Collection[fx.Node]) -> bool:
    """Returns whether a node must run after the `delayed` computations of numbers."""
    if any(operand in delayed for operand in node.all_input_nodes):
        return True
    if not (node.meta.get("mutates") or node.meta.get("draws")):
        return False
    read = {_memory(operand) for item in delayed for operand in item.all_input_nodes}
    raises = any(item.meta[FROM_DATA] == RAISES for item in delayed)
    return raises or not read.isdisjoint(node.meta.get("written_memory", ()))


def _symbol_of(node: fx.Node) -> Any:
    """Returns the symbol of a number that is computed from tensors; None if no segment takes the number."""
    return node.meta["example_value"]


def _checking_range(call: BoxedCallable, positions: Sequence[int]) -> BoxedCallable:
    """Wraps `call` to raise eager's error if an int at one of the `positions` does not fit into an int64 tensor."""
    if not positions:
        return call

    def checked(args: list[Any]) -> Any:
        results = call(args)
        for position in positions:
            int(results[position]).to_bytes(8, "little", signed=True)
        return results

    return mark_boxed(checked)


class _Segments:
    """The compilation of one graph. `examples` maps each node that lives across a cut to a fake value."""

    def __init__(self, gm: fx.GraphModule, compile_graph: CompileGraph) -> None:
        self.gm = gm
        self.compile_graph = compile_graph
        self.placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.examples: Environment = {}
        self.steps: list[_Step] = []
        #: Symbols of numbers that are computed between segments.
        self.symbols: list[Any] = []

    def compile(self, example_inputs: Sequence[Any]) -> BoxedCallable:
        initial_settings = settings()
        self.examples = _initial_values(self.placeholders, list(example_inputs), empty=False)
        segment: list[fx.Node] = []
        items: list[fx.Node] = []
        watched = {tensor for node in self.gm.graph.nodes for tensor in watched_tensors(node)}
        for node in _with_delayed_items(self.gm):
            if FROM_DATA in node.meta:
                items.append(node)
                continue
            if items:
                self.add_segment(segment)
                self.add_items(items)
                segment, items = [], []
            if _is_cut(self.gm, node):
                self.add_segment(segment)
                self.add_cut(node)
                segment = []
            elif node.op in ("call_function", "call_method") and node not in self.examples:
                segment.append(node)
            if node in watched:
                self.add_segment(segment)
                segment = []
        self.add_segment(segment)
        (output,) = (node for node in self.gm.graph.nodes if node.op == "output")
        if fixes_any(self.symbols):
            raise _needs_value(next(node for node in self.gm.graph.nodes if FROM_DATA in node.meta))
        self.find_last_uses(output.all_input_nodes)
        return _program(self.placeholders, self.steps, output.args[0], initial_settings)

    def add_segment(self, nodes: list[fx.Node]) -> None:
        """Compiles nodes without cuts."""
        before = settings()
        inputs, outputs = _boundary(nodes)
        for node in nodes:
            if is_switch(node.target):
                node.target(*node.args)  # type: ignore[operator]
        after = settings()
        if any(not is_switch(node.target) for node in nodes):
            part = _part(self.gm, inputs, nodes, outputs, switches_between(before, after))
            restore(before)
            self.add(part, _Step(inputs, outputs, (), before))
            for function, args in switches_between(after, before):
                function(*args)

    def add_cut(self, node: fx.Node) -> None:
        """Adds the step of a cut."""
        if is_switch(node.target):  # a switch of the inference mode: later values are created under the new mode
            node.target(*node.args)  # type: ignore[operator]
        elif is_cond(node):
            self.add_choice(node)
        elif node.target in CHECKPOINTS:
            self.add_checkpoint(node)
        else:
            self.add_call(node)

    def add_choice(self, node: fx.Node) -> None:
        """Compiles both branches of a `cond`."""
        pred, operands = node.args[0], node.args[3]
        elements = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        assert isinstance(pred, fx.Node) and isinstance(operands, (tuple, list))
        examples = self.examples_of(operands)
        graphs = subgraphs_of(self.gm, node)
        calls = tuple(self.compile_part(graph, examples) for graph in graphs)
        results = _run_both(graphs, examples)
        outputs = tuple(elements.get(position) for position in range(len(results)))
        self.steps.append(_Step(tuple(operands), outputs, calls, settings(), pred))
        self.remember(outputs, results)

    def add_checkpoint(self, node: fx.Node) -> None:
        """Compiles the body of a checkpoint; in backward, torch runs the body again."""
        body, inputs = _subgraph(self.gm, node.args[0]), node.args[1]
        assert isinstance(inputs, (tuple, list))
        elements = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        examples = self.examples_of(inputs)
        compiled = self.compile_part(body, examples)

        def call(args: list[Any]) -> Any:
            return node.target(lambda *inputs: tuple(compiled([*inputs])), tuple(args))  # type: ignore[operator]

        results = _run_on_fakes(body, examples, reads_real_tensors=True)
        outputs = tuple(elements.get(position) for position in range(len(results)))
        self.steps.append(_Step(tuple(inputs), outputs, (mark_boxed(call),), settings()))
        self.remember(outputs, results)

    def add_call(self, node: fx.Node) -> None:
        """Adds a call that autograd must see. A result may be any object if the graph only returns the object."""
        inputs = tuple(dict.fromkeys(node.all_input_nodes))
        elements = [user for user in node.users if returns_several(node) and user.target is operator.getitem]
        graph = fx.Graph()
        copies = {source: graph.placeholder(source.name) for source in inputs}
        copies[node] = graph.node_copy(node, copies.__getitem__)
        results = [graph.node_copy(element, copies.__getitem__) for element in elements] or [copies[node]]
        graph.output(tuple(results))
        part = compat.graph_module(torch.nn.Module(), graph)
        examples = _run_on_fakes(part, [self.examples[source] for source in inputs], reads_real_tensors=True)
        outputs = tuple(elements or [node])
        self.steps.append(_Step(inputs, outputs, (make_boxed(part),), settings()))
        self.examples.update(zip(outputs, examples))

    def add_items(self, nodes: list[fx.Node]) -> None:
        """Adds computations of numbers from the values of tensors, which Python runs."""
        inputs, outputs = _boundary(nodes)
        part = _part(self.gm, inputs, nodes, outputs, [])
        ints = [position for position, node in enumerate(outputs) if isinstance(_symbol_of(node), torch.SymInt)]
        self.steps.append(_Step(inputs, outputs, (_checking_range(make_boxed(part), ints),), settings()))
        self.examples.update((node, self.example_of(_symbol_of(node))) for node in outputs)

    def example_of(self, number: Any) -> Any:
        """Returns an example of a value that is computed between segments; `number` is None if no segment takes it."""
        if number is None:
            return None
        if isinstance(number, torch.Tensor):  # the result of `min` or `max`
            return number
        cls = int if isinstance(number, torch.SymInt) else float
        self.symbols.append(backed_number(number.node.shape_env, cls))
        return self.symbols[-1]

    def add(self, part: fx.GraphModule, step: _Step) -> None:
        examples = [self.examples[node] for node in step.inputs]
        step.calls = (self.compile_part(part, examples),)
        self.steps.append(step)
        self.remember(step.outputs, _run_on_fakes(part, examples))

    def examples_of(self, inputs: Iterable[Any]) -> list[Any]:
        return [self.examples[value] if isinstance(value, fx.Node) else value for value in inputs]

    def compile_part(self, part: fx.GraphModule, examples: list[Any]) -> BoxedCallable:
        """Compiles a graph for frozen copies of `examples`: a later trace must not see later writes to the examples."""
        frozen: dict[int, Any] = {id(value): _frozen_copy(value) for value in examples}
        examples = [frozen[id(value)] for value in examples]
        if has_cuts(part):
            return compile_segments(part, examples, self.compile_graph)
        return self.compile_graph(part, examples)

    def remember(self, outputs: Iterable[fx.Node | None], results: Iterable[Any]) -> None:
        for node, result in zip(outputs, results):
            if node is not None and not isinstance(result, (torch.Tensor, int, float, *compat.SYMBOLIC_NUMBERS)):
                raise _cannot_cross(node)
            if node is not None:
                self.examples[node] = result

    def find_last_uses(self, results: Iterable[fx.Node]) -> None:
        """Sets `dying` of each step: the values that no later step needs."""
        needed = set(results)
        for step in reversed(self.steps):
            step.dying = tuple(step.used - needed)
            needed |= step.used


def _initial_values(placeholders: list[fx.Node], args: list[Any], *, empty: bool) -> Environment:
    """Returns the initial values of the graph: inputs, and elements of lists. `empty`: clear donated lists."""
    values: Environment = {}
    for node, value in zip(placeholders, args):
        if not isinstance(value, list):
            if node.users:
                values[node] = value
            continue
        for user in node.users:
            if user.target is not operator.getitem or not isinstance(user.args[1], int):
                raise _cannot_cross(node)
            values[user] = value[user.args[1]]
        if empty and node.meta.get("steal_arg"):
            value.clear()
    return values


def _boundary(nodes: list[fx.Node]) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
    """Returns the values that `nodes` read from other nodes, and the nodes whose values other nodes read."""
    inside = set(nodes)
    read = (i for node in nodes for i in node.all_input_nodes if i not in inside and i.op != "get_attr")
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    return tuple(dict.fromkeys(read)), outputs


def _part(
    gm: fx.GraphModule,
    inputs: tuple[fx.Node, ...],
    nodes: list[fx.Node],
    outputs: tuple[fx.Node, ...],
    switches: list[Call],
) -> fx.GraphModule:
    """Returns a graph of the `nodes` of `gm` with their subgraphs; the graph ends with the calls `switches`."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node, copy in copies.items():
        if isinstance(example := node.meta.get("example_value"), torch.Tensor):
            copy.meta["example_value"] = example
    for node in nodes:
        for subgraph in node.all_input_nodes:
            if subgraph not in copies:
                copies[subgraph] = graph.node_copy(subgraph)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for function, args in switches:
        graph.call_function(function, args)
    graph.output(tuple(copies[node] for node in outputs))
    return compat.graph_module(gm, graph)


def _program(
    placeholders: list[fx.Node], steps: list[_Step], results: Any, initial_settings: Settings
) -> BoxedCallable:
    settings = [step.settings for step in steps]
    plan = [
        (step, switches_between(now, before), switches_between(initial_settings, now))
        for step, before, now in zip(steps, [initial_settings, *settings], settings)
    ]

    def call(args: list[Any]) -> Any:
        values = _initial_values(placeholders, args, empty=True)
        args.clear()
        restoring: list[Call] = []
        try:
            for step, setting, reset in plan:
                for function, arguments in setting:
                    function(*arguments)
                restoring = reset
                step.run(values)
        finally:  # a failed step restores the settings
            for function, arguments in restoring:
                function(*arguments)
        return fx.map_arg(results, values.__getitem__)

    return mark_boxed(call)


# Examples


def _frozen_copy(value: Any) -> Any:
    """Returns a copy that is independent of later writes to `value`, of changes of its data, and of
    `requires_grad_()`."""
    if not isinstance(value, torch.Tensor) or value.is_inference() or not compat.knows_history(value):
        return value
    copy = value.detach()
    if not value.requires_grad:
        return copy
    with torch.enable_grad():
        leaf = copy.requires_grad_()
        return leaf if value.is_leaf else leaf.view_as(leaf)


class _FakeInterpreter(fx.Interpreter):
    """Runs a graph on fake tensors; for a `cond`, runs both branches."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is run_branch:
            return _run_both(args[1:3], args[3])
        if target in CHECKPOINTS:
            return tuple(_FakeInterpreter(args[0]).run(*args[1]))
        return super().call_function(target, *with_hints(target, tuple(with_first_indices(target, args)), kwargs))

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_method(target, *with_hints(target, args, kwargs))


def _run_on_fakes(gm: fx.GraphModule, examples: Sequence[Any], reads_real_tensors: bool = False) -> Sequence[Any]:
    """Returns the results of the graph for fake values; the graph may change the values.

    `reads_real_tensors`: a Python function that the graph calls may read tensors that are not among its arguments.
    """
    known = [*examples, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    mode = next((value.fake_mode for value in known if isinstance(value, FakeTensor)), None) or FakeTensorMode()
    try:
        real = real_tensors_in_calls(mode) if reads_real_tensors else contextlib.nullcontext()
        with mode, real, without_fake_tensor_log():
            results: Sequence[Any] = _FakeInterpreter(gm).run(*examples)
    except RuntimeError as error:  # for example, a view whose base was written to in a different mode
        raise untraceable(error) from error
    return results


def _run_both(graphs: Iterable[fx.GraphModule], examples: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the fake results of a `cond`; a result requires grad if it does in either branch."""
    true_results, false_results = (_run_on_fakes(graph, examples, reads_real_tensors=True) for graph in graphs)
    return tuple(b if b.requires_grad else a for a, b in zip(true_results, false_results))


def _needs_value(node: fx.Node) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD406",
            "an operation decides by a number that the graph reads from a tensor",
            why="The number is known only when the graph runs.",
            where=line_of_node(node),
        )
    )


def _cannot_cross(node: fx.Node) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD406",
            f"`{node}` is not a tensor, and is needed before and after a cond",
            why="A graph with a cond is compiled in parts, which pass only tensors to each other.",
            fix="Compute the value again after the cond.",
            where=line_of_node(node),
        )
    )
