"""Owns the text of a compiled graph's autograd node: the Python functions that run in each call and each backward.

The edges, the saved tensors and the values for derivatives of gradients are known when the graph is compiled, so the
text contains no conditions on them. Its backward serves the usual case: every result has a gradient in a known layout,
all leaves are requested, and no gradient is differentiated or batched. `graph_node.py` has the other cases, and the
record `node` from which the text is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import skip_leaf_hooks
from minidynamo.autograd.graph.layouts import Layout
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.accumulation import make_accumulator
from minidynamo.autograd.runtime.backward_call import begin
from minidynamo.autograd.runtime.double_backward import HigherOrderState, with_version
from minidynamo.autograd.runtime.graph_node import GraphNode
from minidynamo.autograd.runtime.input_nodes import GRAD_SEED, SeparateInputs, links_to, opaque, without_data
from minidynamo.autograd.runtime.result_nodes import (
    OwnedValues,
    Watch,
    hold_values,
    is_cut,
    join_result,
    watched,
    with_node,
)
from minidynamo.autograd.runtime.stage_nodes import Stages, stage_nodes
from minidynamo.core import artifacts
from minidynamo.core.artifacts import own_frames_hidden
from minidynamo.core.names import Namespace
from minidynamo.core.references import Reference
from minidynamo.graph.boxed import BoxedCallable, mark_boxed
from minidynamo.graph.saved_tensor_hooks import mark_before_saving

_LOCALS = re.findall(
    r"\w+",
    """
    ctx args links edges hooked kept kept_for_derivatives numbers leaf values ends separate holders inputs main owned
    held own value common target attach returned error arguments incoming check graph takes_receiver gradients forward
    backward bind_call call apply i stages following
    """,
)
"""The local names of the text."""


class NodeState:
    """The attributes of a node, as they are until a call or a backward sets them."""

    #: How to call the graph.
    signature: GraphSignature
    #: What is kept for derivatives of the gradients; None after a backward has freed it.
    double_backward: HigherOrderState | None = None
    #: The separate inputs of the call, if there are any.
    separate: SeparateInputs | None = None
    #: Whether backward may follow the text: nothing is freed, no hooks for saved tensors run, no input is separate.
    is_usual = True
    #: The targets whose backward raises.
    freed: frozenset[int] = frozenset()
    #: Per gradient that may be zeros: a tensor without memory, with its layout.
    zero_templates: Mapping[int, torch.Tensor] = MappingProxyType({})
    #: Leaves whose hooks are skipped.
    unvisited: Sequence[torch.Tensor] = ()
    #: With hooks for saved tensors: the layouts of the saved tensors.
    layouts: Sequence[Layout] | None = None
    #: Saved numbers.
    numbers: Sequence[Any] = ()
    #: The saved tensors of single targets, if the node keeps them.
    own: Sequence[torch.Tensor] = ()
    #: Per tensor of `own`: its version at the call.
    versions: Sequence[int] = ()
    #: Per target with a node of its own: a reference to what the node owns.
    owned: Mapping[int, Reference] = MappingProxyType({})
    #: The stages of the backward; None if all gradients are returned together.
    stages: Stages | None = None
    #: The watch of results that user code may see the gradients of.
    watch: Watch | None = None
    #: Shapes of results with symbolic sizes, by position.
    shapes: Mapping[int, torch.Size] = MappingProxyType({})


def node_call(node: GraphNode) -> BoxedCallable:
    """Builds the autograd.Function of a compiled graph, and returns the boxed call that applies it.

    Arguments of `apply`: the list of all inputs, the links to inputs with grad, and the edges. Links have no data, so
    inputs can die in forward (`input_nodes.py`).
    """
    printer = _Printer(node)
    source = printer.text()
    values = printer.names.values
    bind_call = artifacts.load("node", "forward", source, values, "bind_call")
    functions = {name: staticmethod(values[name]) for name in ("forward", "backward")}
    functions["inlined"] = staticmethod(node.inlined)
    # Autograd passes all gradients in one list and keeps none, so gradients die inside backward.
    function = compat.boxed(opaque(type("CompiledFunction", (torch.autograd.Function,), functions)))
    kind: Any = compat.node_type(function)
    for name, value in vars(NodeState).items():
        if not name.startswith("__"):
            setattr(kind, name, value)
    kind.signature = node.signature
    if len(node.targets) > 1 or node.result_nodes.sources or node.unvisited:
        watched(function)
    return mark_boxed(bind_call(compat.raw_apply(function)))


class _Printer:
    """Prints the functions of one node."""

    def __init__(self, node: GraphNode) -> None:
        self.node = node
        self.signature = node.signature
        self.names = Namespace(_LOCALS)
        self.separable = bool(node.input_nodes.separable)

    def name(self, value: Any, hint: str) -> str:
        return self.names.constant(value, hint)

    def text(self) -> str:
        lines = [*self.call(), "", "", *self.forward(), "", "", *self.backward(), ""]
        return "\n".join(lines)

    def call(self) -> Iterable[str]:
        """Yields the boxed call: links the inputs, applies the node, and attaches nodes of single results."""
        node, edges = self.node, self.node.edges
        yield "def bind_call(apply):"
        yield "    def call(args):"
        links = ", ".join(_link(f"args[{i}]", to_non_leaf, bool(to_leaf)) for i, to_non_leaf, to_leaf in edges)
        yield f"        links = [{links}]"
        leaf_tests = [
            f"links[{k}].is_leaf" for k, (_, to_non_leaf, to_leaf) in enumerate(edges) if to_non_leaf and to_leaf
        ]
        absent_tests = [
            f"links[{k}] is None" for k, (_, to_non_leaf, to_leaf) in enumerate(edges) if to_non_leaf and not to_leaf
        ]
        tests = leaf_tests + absent_tests
        attach = [*self.attach()]
        attached = "attach({}, {})" if attach else "{}"
        edges_in_stages = node.signature.graph.stages
        stage = f"{self.name(stage_nodes, 'stage_nodes')}({self.name(edges_in_stages, 'edges_in_stages')}, {{}})"
        staged = "apply(args, links, stages, following)"
        if tests:
            yield f"        if not ({' and '.join(tests)}):"
        if self.separable:
            yield f"            links = {self.name(node.input_nodes.link, 'link')}(links)"
            if edges_in_stages:
                yield f"            stages, following = {stage.format('links.edges')}"
            applied = staged if edges_in_stages else "apply(args, links, *links.edges)"
            yield f"            return {attached.format(applied, 'links')}"
        elif tests:
            yield f"            links = {self.name(links_to, 'links_to')}(links)"
        seed = "" if leaf_tests else f", {self.name(GRAD_SEED, 'seed')}"
        if edges_in_stages:
            yield f"        stages, following = {stage.format('links')}"
        applied = staged if edges_in_stages else f"apply(args, links, *links{seed})"
        yield f"        return {attached.format(applied, 'None')}"
        yield ""
        yield "    return call"
        yield from attach

    def attach(self) -> Iterable[str]:
        """Yields the function that gives results their nodes, given the outputs of the graph's node, and the links if
        inputs are separate. Targets with direct inputs get their nodes in `ResultNodes.join`."""
        nodes = self.node.result_nodes
        owners = nodes.owners if nodes.holders or nodes.joins or self.separable else []
        is_watched = bool(nodes.sources and not nodes.joins)
        if not owners and not is_watched:
            return
        yield from ("", "", "def attach(values, links):")
        yield f"    main = values[{nodes.positions[0]}].grad_fn"
        yield "    if main is None:"
        yield "        return values"
        if owners:
            yield "    values = list(values)"
            yield "    ends, separate = ({}, None) if links is None else (links.ends, links.separate)"
        if nodes.holders:
            hold, seed = self.name(hold_values, "hold"), self.name(GRAD_SEED, "seed")
            yield f"    holders = [{', '.join(f'{hold}({seed}, main.unheld[{k}])' for k in range(len(nodes.holders)))}]"
            yield "    main.unheld = None"
        if owners and nodes.held:
            yield "    held = main.double_backward.held"
            held_for = self.name(tuple(nodes.held), "held_numbers")
            yield f"    inputs = {{i: held.pop(i) for i in {held_for} if i in held}}"
        if owners:
            yield "    main.owned, main.unjoined = {}, {}"
        for target, position, own, is_joined in owners:
            yield from self.owner(target, position, own, is_joined)
        if is_watched:
            reference = self.name(Reference, "Reference")
            tensors = ", ".join(f"{number}: {reference}(values[{nodes.positions[number]}])" for number in nodes.sources)
            signature = self.name(self.signature, "signature")
            yield f"    main.watch = {self.name(Watch, 'Watch')}({signature}, {{{tensors}}})"
        yield "    return values"

    def owner(self, target: int, position: int, own: Sequence[int], is_joined: bool) -> Iterable[str]:
        """Yields the statements that make the node of a target."""
        nodes, indent = self.node.result_nodes, "    "
        if not nodes.holders and not is_joined:
            yield f"    if {position} in ends:"
            indent += "    "
        ends = f"ends.get({position}, {{}})" if self.separable else "{}"
        yield f"{indent}owned = {self.name(OwnedValues, 'OwnedValues')}(separate, {position}, {ends})"
        if own:
            yield f"{indent}owned.holders = {{{', '.join(f'{k}: holders[{k}]' for k in own)}}}"
        if numbers := [i for i, targets in nodes.held.items() if target in targets]:
            numbers_name = self.name(tuple(numbers), "numbers")
            yield f"{indent}owned.inputs = {{i: inputs[i] for i in {numbers_name} if i in inputs}}"
        yield f"{indent}main.owned[{target}] = {self.name(Reference, 'Reference')}(owned)"
        if is_joined:
            yield f"{indent}main.unjoined[{target}] = owned"
        elif self.separable:
            yield f"{indent}values[{position}] = {self.name(with_node, 'with_node')}(values[{position}], owned)"
        else:
            join, value = self.name(join_result, "join"), f"values[{position}]"
            yield f"{indent}{value} = {join}(owned, [{value}.detach()], {value})"

    def forward(self) -> Iterable[str]:
        """Yields the forward of the node: runs the graph, and saves what backward needs."""
        node, saved = self.node, self.node.saved
        is_staged = bool(self.signature.graph.stages)
        yield f"def forward(ctx, args, links, {'stages, following' if is_staged else '*edges'}):"
        if is_staged:
            yield "    ctx.stages = stages"
        yield f"    hooked = {self.name(compat.top_saved_tensor_hooks, 'saved_tensor_hooks')}(False) is not None"
        detached = {
            i: self.name(_without_history, "without_history") for i in node.unreached.intersection(saved.inputs)
        }
        inputs = [f"{detached[i]}(args[{i}])" if i in detached else f"args[{i}]" for i in saved.inputs]
        yield f"    kept = [{', '.join(inputs)}]"
        if saved.number_inputs:
            yield f"    numbers = [{_items('args', saved.number_inputs)}]"
        if self.separable:
            yield "    if links.__class__ is not list:"
            yield "        ctx.separate, links = links.separate, links.links"
            yield "        ctx.is_usual = ctx.separate is None"
        yield from self.higher_order()
        if node.zeros:
            like = self.name(without_data, "without_data")
            yield f"    ctx.zero_templates = {{{', '.join(f'{k}: {like}(args[{i}])' for k, i in node.zeros)}}}"
        if node.unvisited:
            yield f"    ctx.unvisited = [leaf for leaf in ({_items('links', node.unvisited)}) if leaf is not None]"
            yield "    ctx.unvisited = [leaf for leaf in ctx.unvisited if leaf.is_leaf]"
        yield "    try:"
        yield f"        values = {self.name(node.forward, 'graph')}(args)"
        yield "    except BaseException as error:"
        yield f"        {self.name(mark_before_saving, 'mark_before_saving')}(error)"
        yield "        raise"
        if saved.computed:
            yield f"    kept += [{_items('values', saved.computed)}]"
        count = self.signature.results
        yield f"    returned = ({_items('values', range(count))})"
        yield "    if hooked:"
        yield f"        ctx.is_usual, ctx.layouts = False, [*map({self.name(Layout, 'Layout')}, kept)]"
        yield from self.save(count)
        numbers = ["*numbers"] * bool(saved.number_inputs) + [f"values[{i}]" for i in saved.computed_numbers]
        if numbers:
            yield f"    ctx.numbers = [{', '.join(numbers)}]"
        if node.backward.symbolic:
            shapes = (f"{i}: values[{i}].shape" for i in node.backward.symbolic)
            yield f"    ctx.shapes = {{{', '.join(shapes)}}}"
        yield "    ctx.set_materialize_grads(False)"
        if node.non_differentiable:
            yield f"    ctx.mark_non_differentiable({_items('values', node.non_differentiable)})"
        yield "    return returned"

    def save(self, count: int) -> Iterable[str]:
        """Yields the statements that save the tensors in `kept`, given the number of results."""
        result_nodes = self.node.result_nodes
        kept, indent = "*kept", "    "
        if result_nodes.holders or result_nodes.own:  # no node may refer to a tensor with the history of a result
            yield f"    own = {{{', '.join(f'id(values[{i}])' for i in range(count))}}}"
            yield "    kept = [value.detach() if id(value) in own or value._is_view() else value for value in kept]"
            kept = _items("kept", result_nodes.common)
        if result_nodes.holders:
            unheld = ", ".join(f"[{_items('kept', numbers)}]" for _, numbers in result_nodes.holders)
            yield f"    ctx.unheld = [{unheld}]"
        if result_nodes.own:
            yield "    if hooked:"
            yield "        ctx.save_for_backward(*kept)"
            yield "    else:"
            yield f"        ctx.own = [{_items('kept', result_nodes.own)}]"
            yield "        ctx.versions = [value._version for value in ctx.own]"
            indent += "    "
        if kept or not result_nodes.own:
            yield f"{indent}ctx.save_for_backward({kept})"

    def higher_order(self) -> Iterable[str]:
        """Yields the statements that keep the values for derivatives of the gradients."""
        double = self.node.double_backward
        keep = f"{self.name(double.keep, 'keep')}(args, links, hooked)"
        if double.plan.random or double.derivatives.symbols:
            yield f"    kept_for_derivatives = {keep}"
        else:
            version = self.name(with_version, "with_version")
            held = ", ".join(f"{i}: {version}(args[{i}])" for i in double.plan.held)
            links = ", ".join(f"links[{k}]" if is_linked else "None" for k, is_linked in enumerate(double.linked))
            missing = self.name(dict(double.plan.missing), "missing")
            state = f"{self.name(HigherOrderState, 'Kept')}({{{held}}}, [{links}], {{}}, {{}}, {missing})"
            yield f"    kept_for_derivatives = {keep} if hooked else {state}"
        if self.separable:  # these links live as long as the results that reach them
            yield "    for i in () if ctx.separate is None else ctx.separate.indices:"
            yield "        kept_for_derivatives.links[i] = None"
        yield "    ctx.double_backward = kept_for_derivatives"

    def backward(self) -> Iterable[str]:
        """Yields the backward of the node: the usual case, and a call of the general function for every other."""
        yield "def backward(ctx, *arguments):"
        yield "    try:"
        yield from (f"    {line}" for line in self.backward_body())
        yield f"    except {self.name(own_frames_hidden, 'own_frames_hidden')}():"
        yield "        raise"

    def backward_body(self) -> Iterable[str]:
        """Yields the statements of `backward`."""
        node = self.node
        yield "    incoming = arguments[0] if arguments[0].__class__ is list else list(arguments)"
        yield "    del arguments"
        general = f"return {self.name(node.run_backward, 'general')}(ctx, incoming)"
        if not node.has_usual_case:
            yield f"    {general}"
            return
        names = ", ".join(f"incoming[{i}]" for i in node.backward.results)
        enabled = self.name(torch.is_grad_enabled, "is_grad_enabled")
        all_leaves = self.name(compat.runs_for_all_leaves, "runs_for_all_leaves")
        cut = f" or {self.name(is_cut, 'is_cut')}(ctx)" if node.backward.has_cuts else ""
        if node.result_nodes.own:
            cut += " or [value._version for value in ctx.own] != ctx.versions"
        yield f"    if {enabled}() or not ctx.is_usual or not {all_leaves}(){cut}:"
        yield f"        {general}"
        yield f"    for check, graph, takes_receiver in {self.name(node.backward.usual, 'usual_gradients')}:"
        yield f"        if check({names}):"
        yield "            break"
        yield "    else:"
        yield f"        {general}"
        yield from self.read_and_free()
        if node.saved.number_inputs or node.saved.computed_numbers:
            yield "    args += ctx.numbers"
        if node.unvisited:
            yield f"    {self.name(skip_leaf_hooks, 'skip_leaf_hooks')}(ctx, (), ctx.unvisited)"
        yield f"    args += ({names},)"
        yield "    incoming.clear()"
        receiver = f"{self.name(make_accumulator, 'make_accumulator')}(ctx, links, args)"
        if self.signature.graph.stages and not node.backward.zero_sources:
            yield f"    gradients = {self.name(begin, 'begin')}(ctx.stages, graph, args, {receiver})"
        else:
            yield f"    gradients = graph(args, {receiver}) if takes_receiver else graph(args)"
        if node.backward.zero_sources:
            yield f"    gradients = {self.name(node.backward.with_zeros, 'with_zeros')}(ctx, gradients, set(), ())"
        if self.signature.graph.stages:
            yield f"    return {self.name(node.returned, 'returned')}(ctx, gradients)"
        else:
            yield "    return (None, None, *gradients, None)"

    def read_and_free(self) -> Iterable[str]:
        """Yields the statements that read the saved values, and free them unless the user retains the graph."""
        node, nodes = self.node, self.node.result_nodes
        yield "    links = ctx.double_backward.links"
        if not node.runs_once:
            yield "    args = []"
        elif nodes.holders or nodes.own:
            values = {i: f"common[{n}]" for n, i in enumerate(nodes.common)}
            if nodes.common:
                yield "    common = ctx.saved_tensors"
            if nodes.own:
                yield "    own = ctx.own"
                values.update((i, f"own[{n}]") for n, i in enumerate(nodes.own))
            for k, (targets, numbers) in enumerate(nodes.holders):  # the nodes of the targets have run: they are alive
                yield f"    held_{k} = ctx.owned[{min(targets)}]().holders[{k}].grad_fn.saved_tensors"
                values.update((i, f"held_{k}[{n}]") for n, i in enumerate(numbers))
            yield f"    args = [{', '.join(text for _, text in sorted(values.items()))}]"
            read = [f"held_{k}" for k in range(len(nodes.holders))]
            yield f"    del {', '.join(read + ['common'] * bool(nodes.common) + ['own'] * bool(nodes.own))}"
        else:
            yield f"    args = {'[]' if node.frees_in_parts else '[*ctx.saved_tensors]'}"
        if node.runs_once:
            yield from self.free()

    def free(self) -> Iterable[str]:
        """Yields the statements of `GraphNode.free` after a backward of all targets."""
        node, freed = self.node, self.node.freed_by(self.node.targets)
        yield "    ctx.maybe_clear_saved_tensors()"
        yield f"    if not {self.name(compat.retains_graph, 'retains_graph')}():"
        if node.result_nodes.own:
            yield "        ctx.own = ()"
        rest = ", ctx.double_backward = False, {}, None" if freed == node.targets else " = False, {}"
        yield f"        ctx.is_usual, ctx.freed{rest.format(self.name(freed, 'freed'))}"
        if node.result_nodes.holders or node.result_nodes.joins or self.separable:
            yield f"        for target in {self.name(tuple(freed), 'freed_targets')}:"
            yield "            if target in ctx.owned and (owned := ctx.owned[target]()) is not None:"
            yield "                owned.free()"


def _link(arg: str, to_non_leaf: bool, to_leaf: bool) -> str:
    """Returns the text of a link: None for leaves without an edge, and for tensors with a history without an edge."""
    if to_non_leaf:
        return arg if to_leaf else f"None if {arg}.is_leaf else {arg}"
    return f"{arg} if {arg}.is_leaf else None" if to_leaf else "None"


def _items(name: str, indices: Iterable[int]) -> str:
    """Returns the text of items, separated by commas; a single item has a comma as well."""
    texts = [f"{name}[{i}]" for i in indices]
    return f"{texts[0]}," if len(texts) == 1 else ", ".join(texts)


def _without_history(value: torch.Tensor) -> torch.Tensor:
    """Returns `value`, detached unless it is a leaf: autograd must not enter its history."""
    return value if value.is_leaf else value.detach()
