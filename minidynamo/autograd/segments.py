"""Owns graphs that are compiled in segments: a `cond` between two of them is a choice between two compiled graphs, what
autograd must see itself (`graph/autograd_calls.py`) is called as it is, and each runs in the inference mode of its
place.

Autograd joins the segments as it joins any functions, so each of them, and each branch, is differentiated, saves and
frees for itself. Nothing here compiles: `aot.py` says how one graph without cuts is compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.trace.joint import untraceable
from minidynamo.autograd.trace.scalar_arguments import foreseen
from minidynamo.compat import FakeTensor, without_fake_tensor_log
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.autograd_calls import gives_several, is_autograd_call, require_grad, watched_tensors
from minidynamo.graph.boxed import BoxedCallable, make_boxed, mark_boxed
from minidynamo.graph.checkpoint import CHECKPOINTS
from minidynamo.graph.cond import is_cond, run_branch, subgraphs_of
from minidynamo.graph.tensor_index import at_first_places
from minidynamo.graph.torch_settings import (
    Call,
    Settings,
    is_switch,
    preserved,
    restore,
    settings,
    switches_inference,
    way_to,
)

CompileGraph = Callable[[fx.GraphModule, Sequence[Any]], BoxedCallable]
Environment = dict[fx.Node, Any]


@dataclass
class _Step:
    """A part of the graph: one callable, or two with the node that chooses between them.

    It takes the values of `inputs`, some of which may be constants, frees those in `dying`, and makes `outputs`;
    `settings` are in force when it begins and when it ends.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[fx.Node | None, ...]
    calls: tuple[BoxedCallable, ...]
    settings: Settings
    pred: fx.Node | None = None
    dying: tuple[fx.Node, ...] = ()

    @property
    def used(self) -> set[fx.Node]:
        """Every node whose value it reads."""
        return {node for node in (*self.inputs, self.pred) if isinstance(node, fx.Node)}

    def run(self, values: Environment) -> None:
        """Run it on `values`, and put its results there."""
        call = self.calls[0] if self.pred is None or values[self.pred] else self.calls[1]
        given = [values[node] if isinstance(node, fx.Node) else node for node in self.inputs]
        for node in self.dying:
            del values[node]
        for output, result in zip(self.outputs, call(given)):
            if output is not None:
                values[output] = result


def has_cuts(gm: fx.GraphModule) -> bool:
    """Whether the graph has to be compiled in segments."""
    return any(_is_cut(gm, node) for node in gm.graph.nodes)


def _is_cut(gm: fx.GraphModule, node: fx.Node) -> bool:
    if is_cond(node) or is_autograd_call(node) or switches_inference(node.target):
        return True
    return node.target in CHECKPOINTS and has_cuts(_subgraph(gm, node.args[0]))


def _subgraph(gm: fx.GraphModule, node: Any) -> fx.GraphModule:
    subgraph = gm.get_submodule(node.target)
    assert isinstance(subgraph, fx.GraphModule)
    return subgraph


def compile_segments(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: CompileGraph) -> BoxedCallable:
    """A boxed callable that runs `gm`, each stretch without cuts compiled by `compile_graph`.

    Raises GraphRefused MD406 when something other than a tensor lives across a cut, and MD404 when autograd would have
    to know that a view is older than a write.
    """
    for node in gm.graph.find_nodes(op="call_function", target=require_grad):
        _check_views(gm, node)
    with preserved():
        return _Segments(gm, compile_graph).compile(example_inputs)


def _check_views(gm: fx.GraphModule, required: fx.Node) -> None:
    """Raise GraphRefused if a view of a tensor that requires grad from now on is used behind that, and is older than
    the last write: autograd makes such views anew, and not those that a segment returns when all writes are done."""
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    tensor = required.args[0]
    memory = _memory(required)
    writes = [i for node, i in place.items() if memory in node.meta.get("written_memory", ()) and i < place[required]]
    for node, i in place.items() if writes else ():
        is_older = i < max(writes) and i not in writes and node is not tensor and _memory(node) == memory
        if is_older and any(place[user] > place[required] for user in node.users):
            raise GraphRefused(
                Diagnostic(
                    "MD404",
                    "a tensor requires grad behind a write, and a view of before is used",
                    why="Autograd makes the history of such a view anew.",
                    fix="Call `requires_grad_()` first, or make the view behind it.",
                )
            )


def _memory(node: Any) -> object:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return compat.memory_of(value) if isinstance(value, torch.Tensor) else None


class _Segments:
    """The compilation of one graph. `examples` has a fake value of each node that lives across a cut."""

    def __init__(self, gm: fx.GraphModule, compile_graph: CompileGraph) -> None:
        self.gm = gm
        self.compile_graph = compile_graph
        self.placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.examples: Environment = {}
        self.steps: list[_Step] = []

    def compile(self, example_inputs: Sequence[Any]) -> BoxedCallable:
        entry = settings()
        self.examples = _arriving(self.placeholders, list(example_inputs), empty=False)
        pending: list[fx.Node] = []
        ends = {found for node in self.gm.graph.nodes for found in watched_tensors(node)}
        for node in self.gm.graph.nodes:
            if _is_cut(self.gm, node):
                self.add_segment(pending)
                self.add_cut(node)
                pending = []
            elif node.op in ("call_function", "call_method") and node not in self.examples:
                pending.append(node)
            if node in ends:
                self.add_segment(pending)
                pending = []
        self.add_segment(pending)
        (output,) = (node for node in self.gm.graph.nodes if node.op == "output")
        self.find_last_uses(output.all_input_nodes)
        return _program(self.placeholders, self.steps, output.args[0], entry)

    def add_segment(self, nodes: list[fx.Node]) -> None:
        """Compile a stretch of the graph without cuts."""
        inside, before = set(nodes), settings()
        given = (i for node in nodes for i in node.all_input_nodes if i not in inside and i.op != "get_attr")
        inputs = tuple(dict.fromkeys(given))
        outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
        for node in nodes:
            if is_switch(node.target):
                node.target(*node.args)  # type: ignore[operator]
        after = settings()
        if any(not is_switch(node.target) for node in nodes):
            part = _part(self.gm, inputs, nodes, outputs, way_to(before, after))
            restore(before)
            self.add(part, _Step(inputs, outputs, (), before))
            for function, args in way_to(after, before):
                function(*args)

    def add_cut(self, node: fx.Node) -> None:
        """Note what happens between two stretches."""
        if is_switch(node.target):  # that of inference mode: what lies behind is made under the other one
            node.target(*node.args)  # type: ignore[operator]
        elif is_cond(node):
            self.add_choice(node)
        elif node.target in CHECKPOINTS:
            self.add_checkpoint(node)
        else:
            self.add_call(node)

    def add_choice(self, node: fx.Node) -> None:
        """Compile both branches of a `cond`."""
        pred, operands = node.args[0], node.args[3]
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        assert isinstance(pred, fx.Node) and isinstance(operands, (tuple, list))
        examples = self.examples_of(operands)
        graphs = subgraphs_of(self.gm, node)
        calls = tuple(self.compile_part(graph, examples) for graph in graphs)
        results = _run_both(graphs, examples)
        outputs = tuple(parts.get(position) for position in range(len(results)))
        self.steps.append(_Step(tuple(operands), outputs, calls, settings(), pred))
        self.remember(outputs, results)

    def add_checkpoint(self, node: fx.Node) -> None:
        """Compile what a checkpoint runs; that backward runs it again is for torch to see to."""
        part, inputs = _subgraph(self.gm, node.args[0]), node.args[1]
        assert isinstance(inputs, (tuple, list))
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        examples = self.examples_of(inputs)
        compiled = self.compile_part(part, examples)

        def call(args: list[Any]) -> Any:
            return node.target(lambda *given: tuple(compiled([*given])), tuple(args))  # type: ignore[operator]

        results = _run_on_fakes(part, examples)
        outputs = tuple(parts.get(position) for position in range(len(results)))
        self.steps.append(_Step(tuple(inputs), outputs, (mark_boxed(call),), settings()))
        self.remember(outputs, results)

    def add_call(self, node: fx.Node) -> None:
        """Call what autograd must see. Its result need not be a tensor, if it is only handed out."""
        inputs = tuple(dict.fromkeys(node.all_input_nodes))
        parts = [user for user in node.users if gives_several(node) and user.target is operator.getitem]
        graph = fx.Graph()
        copies = {given: graph.placeholder(given.name) for given in inputs}
        copies[node] = graph.node_copy(node, copies.__getitem__)
        results = [graph.node_copy(part, copies.__getitem__) for part in parts] if parts else [copies[node]]
        graph.output(tuple(results))
        part = compat.graph_module(torch.nn.Module(), graph)
        examples = _run_on_fakes(part, [self.examples[given] for given in inputs])
        outputs = tuple(parts or [node])
        self.steps.append(_Step(inputs, outputs, (make_boxed(part),), settings()))
        self.examples.update(zip(outputs, examples))

    def add(self, part: fx.GraphModule, step: _Step) -> None:
        examples = [self.examples[node] for node in step.inputs]
        step.calls = (self.compile_part(part, examples),)
        self.steps.append(step)
        self.remember(step.outputs, _run_on_fakes(part, examples))

    def examples_of(self, inputs: Iterable[Any]) -> list[Any]:
        return [self.examples[given] if isinstance(given, fx.Node) else given for given in inputs]

    def compile_part(self, part: fx.GraphModule, examples: list[Any]) -> BoxedCallable:
        """Compile a graph for what `examples` are now. It may be traced again when they have been written to."""
        made: dict[int, Any] = {id(value): _as_it_is(value) for value in examples}
        examples = [made[id(value)] for value in examples]
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
        """Tell each step which values nobody needs behind it."""
        needed = set(results)
        for step in reversed(self.steps):
            step.dying = tuple(step.used - needed)
            needed |= step.used


def _arriving(placeholders: list[fx.Node], args: list[Any], *, empty: bool) -> Environment:
    """The values that the graph begins with: its inputs, and the elements of lists. `empty` the lists given up."""
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


def _part(
    gm: fx.GraphModule,
    inputs: tuple[fx.Node, ...],
    nodes: list[fx.Node],
    outputs: tuple[fx.Node, ...],
    back: list[Call],
) -> fx.GraphModule:
    """A graph of its own out of `nodes` of `gm`, which ends with the switches `back`; subgraphs come along."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        for subgraph in node.all_input_nodes:
            if subgraph not in copies:
                copies[subgraph] = graph.node_copy(subgraph)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for function, args in back:
        graph.call_function(function, args)
    graph.output(tuple(copies[node] for node in outputs))
    return compat.graph_module(gm, graph)


def _program(placeholders: list[fx.Node], steps: list[_Step], results: Any, entry: Settings) -> BoxedCallable:
    around = [step.settings for step in steps]
    plan = [
        (step, way_to(now, before), way_to(entry, now)) for step, before, now in zip(steps, [entry, *around], around)
    ]

    def call(args: list[Any]) -> Any:
        values = _arriving(placeholders, args, empty=True)
        args.clear()
        way_back: list[Call] = []
        try:
            for step, way, back in plan:
                for function, arguments in way:
                    function(*arguments)
                way_back = back
                step.run(values)
        finally:  # a step that fails leaves the settings as it found them
            for function, arguments in way_back:
                function(*arguments)
        return fx.map_arg(results, values.__getitem__)

    return mark_boxed(call)


# Examples


def _as_it_is(value: Any) -> Any:
    """What later steps leave alone when they write to `value`, give it other data, or have it require grad."""
    if not isinstance(value, torch.Tensor) or value.is_inference() or not compat.tells_history(value):
        return value
    copy = value.detach()
    if not value.requires_grad:
        return copy
    with torch.enable_grad():
        leaf = copy.requires_grad_()
        return leaf if value.is_leaf else leaf.view_as(leaf)


class _OnFakes(fx.Interpreter):
    """Runs a graph on fake tensors; of a `cond`, both branches."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is run_branch:
            return _run_both(args[1:3], args[3])
        if target in CHECKPOINTS:
            return tuple(_OnFakes(args[0]).run(*args[1]))
        return super().call_function(target, *foreseen(target, tuple(at_first_places(target, args)), kwargs))

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_method(target, *foreseen(target, args, kwargs))


def _run_on_fakes(gm: fx.GraphModule, examples: Sequence[Any]) -> Sequence[Any]:
    """What the graph returns for fake values; like the graph, it may change them."""
    known = [*examples, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    mode = next((value.fake_mode for value in known if isinstance(value, FakeTensor)), None) or FakeTensorMode()
    try:
        with mode, without_fake_tensor_log():
            results: Sequence[Any] = _OnFakes(gm).run(*examples)
    except RuntimeError as error:  # of a view whose base was written to in another mode, say
        raise untraceable(error) from error
    return results


def _run_both(graphs: Iterable[fx.GraphModule], examples: Sequence[Any]) -> tuple[Any, ...]:
    """Fake results of a `cond`: they require grad if those of either branch do."""
    true_results, false_results = (_run_on_fakes(graph, examples) for graph in graphs)
    return tuple(b if b.requires_grad else a for a, b in zip(true_results, false_results))


def _cannot_cross(node: fx.Node) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD406",
            f"`{node}` is not a tensor, and is needed before and behind a cond",
            why="A graph with a cond is compiled in parts, which hand tensors to each other.",
            fix="Make the value again behind the cond.",
        )
    )
