"""Owns the boxed calling convention: how to recognize, adapt and generate callables that take one list and empty it;
and the readable text of a graph.

Some boxed callables *hand over* results. Such a callable takes a list and a function. It calls the function with the
position and the value of each tensor result, as soon as the result is final, and returns the function's return value in
its place. A callable *in steps* is also a generator function `_steps`, which stops at each such call: it yields the
position and a list with the value, and the caller takes the value from the list.

Does not choose the operations: `make_boxed` prints an FX graph as Python, node by node, with the functions that the
graph names. The eager backend runs such programs; `codegen/printers/host.py` prints programs that hand over results.
`graph_text` prints a graph for people: dtypes and sizes, below the user's lines.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.core import artifacts
from minidynamo.core.events import notice
from minidynamo.core.names import Namespace
from minidynamo.errors import ArgumentError, Diagnostic, InternalError, UserLocation
from minidynamo.graph.checked_results import Promise, check_number_of, is_trusted
from minidynamo.graph.higher_order import is_cond, subgraphs_of
from minidynamo.graph.torch_settings import is_switch, restore, settings

BoxedCallable = Callable[[list[Any]], Any]
HandOver = Callable[[int, torch.Tensor], torch.Tensor | None]
"""A receiver of results: called with position and tensor, it returns the tensor, or None if it keeps the tensor."""

UNBOXED = "a boxed callable takes one list of arguments, not {}"


def is_boxed(function: Callable[..., Any]) -> bool:
    """Returns whether `function` takes one list and empties it."""
    return getattr(function, "_boxed_call", False) is True


def mark_boxed(function: BoxedCallable) -> BoxedCallable:
    """Marks `function` as boxed, and returns it."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def hands_over(function: Callable[..., Any]) -> bool:
    """Returns whether a boxed callable takes a second argument: a receiver of results, or None."""
    return getattr(function, "_hands_over", False) is True


Steps = Generator[tuple[int, list[torch.Tensor]], torch.Tensor | None, Sequence[torch.Tensor | None]]
"""The run of a callable in steps."""


def run_steps(steps: Steps, hand_over: HandOver | None) -> Sequence[torch.Tensor | None]:
    """Runs all steps, with a receiver of results; returns the results."""
    answer: torch.Tensor | None = None
    try:
        while True:
            position, handed = steps.send(answer)
            answer = handed.pop() if hand_over is None else hand_over(position, handed.pop())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def steps_of(function: Callable[..., Any]) -> Callable[[list[Any]], Steps] | None:
    """Returns the generator function of a callable in steps; None for other callables."""
    return getattr(function, "_steps", None)


def make_boxed_func(function: Callable[..., Any]) -> BoxedCallable:
    """Adapts `function(*args)` to the boxed signature. No argument is freed early: `function` owns its arguments.

    Raises ArgumentError for an object that is not callable.
    """
    if not callable(function):
        what = f"minidynamo.make_boxed_func got {type(function).__name__}, not a callable"
        raise ArgumentError(Diagnostic("MD112", what, fix="Pass a function of the graph's inputs."))

    def boxed(args: list[Any]) -> Any:
        if not isinstance(args, list):
            reject_unboxed(args)
        values = tuple(args)
        args.clear()
        return function(*values)

    return mark_boxed(boxed)


def as_boxed(function: Callable[..., Any], who: str, noticed: set[tuple[str, str]] | None = None) -> BoxedCallable:
    """Returns the callable of a graph, returned by `who`, in boxed form. Adapting a plain function costs memory, and
    shows one notice.

    `noticed` holds the notices already shown for the compiled function of the graph.
    """
    if not is_boxed(function):
        return _adapted(function, who, noticed)
    if _takes_one_list(function):
        return function
    return _tried(function, functools.partial(_adapted, who=who, noticed=noticed))


def _takes_one_list(function: Callable[..., Any]) -> bool:
    """Returns whether the mark of a boxed callable is surely its own: wrappers copy the mark, and may take anything."""
    try:
        parameters = [*inspect.signature(function, follow_wrapped=False).parameters.values()]
    except (TypeError, ValueError):  # a callable without a signature
        return False
    required = [each for each in parameters if each.default is each.empty]
    single = len(required) == 1 and required[0].kind in (required[0].POSITIONAL_ONLY, required[0].POSITIONAL_OR_KEYWORD)
    return single and not hasattr(function, "__wrapped__")


def _tried(function: BoxedCallable, adapt: Callable[[Callable[..., Any]], BoxedCallable]) -> BoxedCallable:
    """Returns a boxed form of a function that has the mark, but may take its arguments separately: the first call tries
    the list first. The arguments of that call live until it ends."""
    chosen: list[BoxedCallable] = []

    def call(args: list[Any]) -> Any:
        if chosen:
            return chosen[0](args)
        values = [*args]
        try:
            results = function(args)
        except (TypeError, ValueError, AttributeError, StopIteration, RuntimeError) as error:
            # A function that takes a list has used it.
            if len(args) < len(values) or any(arg is not value for arg, value in zip(args, values)):
                raise
            args.clear()
            separate = adapt(function)
            try:
                results = separate(values)
            except Exception:
                raise error from None
            chosen.append(separate)
        else:
            chosen.append(function)
        return results

    return mark_boxed(call)


def _adapted(function: Callable[..., Any], who: str, noticed: set[tuple[str, str]] | None = None) -> BoxedCallable:
    notice(
        Diagnostic(
            "MD521",
            f"{who} returned a function that is not boxed",
            why="It is called with separate arguments, so no input can be freed before it returns.",
            fix="Wrap it: return minidynamo.make_boxed_func(fn), or take one list and clear it.",
        ),
        noticed=set() if noticed is None else noticed,
    )
    return make_boxed_func(function)


def reject_unboxed(args: object) -> None:
    """Raises TypeError for an argument other than the list of a boxed call."""
    raise TypeError(UNBOXED.format(type(args).__name__))


def make_boxed(gm: fx.GraphModule, name: str = "graph") -> BoxedCallable:
    """Builds a boxed function that runs the graph of `gm` node by node.

    The function is Python source in a separate file (kind "host"). It unpacks and empties the list, drops unused
    inputs, and deletes each value after the last use. Elements of a list placeholder marked `steal_arg` are extracted
    first, and the list is emptied, so that elements also die at their last use.

    Raises InternalError if a graph holds a value that no Python expression can name.
    """
    program = _Program(gm)
    source = program.print()
    return mark_boxed(artifacts.load("host", name, source, program.names.values, "call"))


class _Program:
    """The text of one graph, and its global names."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.nodes = list(gm.graph.nodes)
        self.names = Namespace({node.name for node in self.nodes} | {"call"})
        self.args = self.names.fresh("args")
        self.donated_elements = [node for node in self.nodes if _is_stolen_element(node)]
        self.dying = _last_uses(self.nodes, self.donated_elements)
        self.location: object = None
        self.symbols = _sizes_of_inputs(self.nodes) if any(_operator_of_users(n.target) for n in self.nodes) else {}
        self.bound: dict[Any, str] = {}  # names of the symbols that checks compare
        self.comparisons = {node: self.comparison(node) for node in self.nodes}

    def print(self) -> str:
        body = self.prologue()
        for node in self.nodes:
            if node.op != "placeholder" and node not in self.donated_elements and not self.is_subgraph(node):
                body += self.location_comment(node)
                body += self.conditional(node) if is_cond(node) else [self.statement(node) + self.deletion(node)]
                body += self.comparisons[node]
        if any(is_switch(node.target) for node in self.nodes):
            body = self.restoring_settings(body)
        return "\n".join([f"def call({self.args}):", *(f"    {line}" for line in body), ""])

    def prologue(self) -> list[str]:
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        lines = [f"if {self.args}.__class__ is not list:"]
        lines.append(f"    {self.names.constant(reject_unboxed, 'reject_unboxed')}({self.args})")
        if inputs:
            lines.append(f"{', '.join(node.name for node in inputs)}{',' * (len(inputs) == 1)} = {self.args}")
        lines += [f"{name} = {self.symbols[symbol]}" for symbol, name in self.bound.items()]
        lines.append(f"{self.args}.clear()")
        unused = [node.name for node in inputs if not node.users]
        for node in inputs:
            if node.meta.get("steal_arg"):
                lines += self.steal(node)
        if unused:
            lines.append(f"del {', '.join(unused)}")
        return lines

    def steal(self, node: fx.Node) -> list[str]:
        """Extracts the elements of a donated list, then empties it."""
        elements = [user for user in self.donated_elements if user.args[0] is node]
        lines = [self.statement(element) for element in elements if element.users]
        if len(elements) == len(node.users):
            lines.append(f"{node.name}.clear()")
            return [*lines, f"del {node.name}"] if node.users else lines
        # A node uses the whole list, and receives a copy.
        donated = self.names.fresh(f"{node.name}_donated")
        return [
            *lines,
            f"{donated} = {node.name}",
            f"{node.name} = [*{donated}]",
            f"{donated}.clear()",
            f"del {donated}",
        ]

    def location_comment(self, node: fx.Node) -> list[str]:
        where = node.meta.get("user_location")
        if where is None or where == self.location:
            return []
        self.location = where
        return [f"# {where.comment()}"]

    def statement(self, node: fx.Node) -> str:
        text = self.value(node)
        if node.op == "output":
            return f"return {text}"
        return f"{node.name} = {text}" if node.users else text

    def is_subgraph(self, node: fx.Node) -> bool:
        """Returns whether the node names a graph that runs inside this graph."""
        return node.op == "get_attr" and all(map(is_cond, node.users))

    def conditional(self, node: fx.Node) -> list[str]:
        """Writes the run of one of two graphs. Operands are passed in a list, and die at their last use."""
        graphs = zip(("true_graph", "false_graph"), subgraphs_of(self.gm, node))
        true_graph, false_graph = (self.names.constant(make_boxed(graph, name), name) for name, graph in graphs)
        pred, operands = node.args[0], node.args[3]
        packed, branch = self.names.fresh(f"{node.name}_operands"), self.names.fresh(f"{node.name}_graph")
        dying = [dead for dead in self.dying.get(node, ()) if dead.op != "get_attr"]
        lines = [
            f"{branch} = {true_graph} if {self.expression(pred)} else {false_graph}",
            f"{packed} = [{', '.join(self.expression(operand) for operand in operands)}]",  # type: ignore[union-attr]
            *([f"del {', '.join(dead.name for dead in dying)}"] if dying else []),
            f"{node.name} = {branch}({packed})",
        ]
        return lines if node.users else [*lines, f"del {node.name}"]

    def comparison(self, node: fx.Node) -> list[str]:
        """Writes the check of the result of a user's operator against its fake implementation, on which later nodes
        depend.
        """
        call = node.args[0] if node.target is operator.getitem else node
        op = _operator_of_users(call.target) if isinstance(call, fx.Node) and node.users else None
        if op is None:
            return []
        captured = "val" not in node.meta
        promised, name = node.meta.get("example_value" if captured else "val"), str(op.name())
        if isinstance(promised, list):
            return check_number_of(node.name, name, len(promised), self.names)
        if not isinstance(promised, torch.Tensor) or promised.layout is not torch.strided or promised.is_neg():
            return []
        shape, stride = [*map(self.size, promised.shape)], [*map(self.size, promised.stride())]
        promise = Promise(name, shape, stride, promised.dtype, promised.device, relays=not captured)
        return promise.check(node.name, self.names)

    def size(self, size: Any) -> str | None:
        """Returns a size or a stride as Python text; None if it does not follow from the inputs."""
        if not isinstance(size, torch.SymInt):
            return str(size)
        template, symbols = compat.symbolic().text(size.node.expr)
        if not all(symbol in self.symbols for symbol in symbols):
            return None
        for symbol in symbols:
            self.bound.setdefault(symbol, self.names.fresh("size"))
        return f"({template.format(*(self.bound[symbol] for symbol in symbols))})"

    def deletion(self, node: fx.Node) -> str:
        names = [dead.name for dead in self.dying.get(node, ())]
        return f"; del {', '.join(names)}" if names and node.op != "output" else ""

    def value(self, node: fx.Node) -> str:
        if node.op == "output":
            return self.expression(node.args[0])
        if node.op == "get_attr":
            assert isinstance(node.target, str)
            return self.names.constant(operator.attrgetter(node.target)(self.gm), node.target)
        args = [self.expression(arg) for arg in node.args]
        args += [f"{key}={self.expression(arg)}" for key, arg in node.kwargs.items()]
        if node.op == "call_method":
            return f"{args[0]}.{node.target}({', '.join(args[1:])})"
        if node.op == "call_module":
            assert isinstance(node.target, str)
            return f"{self.names.constant(self.gm.get_submodule(node.target), node.target)}({', '.join(args)})"
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        return f"{self.names.constant(node.target, _function_hint(node.target))}({', '.join(args)})"

    def expression(self, value: Any) -> str:
        """Returns Python text for an argument: nodes by name, containers and constants as literals, other objects as
        globals.
        """
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, tuple):
            items = ", ".join(map(self.expression, value))
            if hasattr(value, "_fields") or type(value).__module__.startswith("torch.return_types"):
                return f"{self.names.constant(type(value), type(value).__name__)}({items})"
            return f"({items}{',' * (len(value) == 1)})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.expression, value))}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            parts = ", ".join(self.expression(part) for part in (value.start, value.stop, value.step))
            return f"{self.names.constant(slice, 'slice')}({parts})"
        if value is None or value is ... or type(value) in (bool, int, str, bytes):
            return "..." if value is ... else repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        if isinstance(value, fx.Proxy):
            raise InternalError(
                Diagnostic("MD405", f"a graph holds the proxy {value!r}, which only exists while tracing")
            )
        return self.names.constant(value, _constant_hint(value))

    def restoring_settings(self, body: list[str]) -> list[str]:
        """Restores the settings if an error leaves a graph that changes settings."""
        before = self.names.fresh("before")
        return [
            f"{before} = {self.names.constant(settings, 'settings')}()",
            "try:",
            *(f"    {line}" for line in body),
            "except BaseException:",
            f"    {self.names.constant(restore, 'restore')}({before})",
            "    raise",
        ]


def _is_stolen_element(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not operator.getitem:
        return False
    owner, index = node.args
    is_list = isinstance(owner, fx.Node) and owner.op == "placeholder" and bool(owner.meta.get("steal_arg"))
    return is_list and type(index) is int


def _last_uses(nodes: list[fx.Node], donated_elements: Iterable[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Maps each node to the values with their last use there. Reads of donated elements are ignored: they run first."""
    run_first = set(donated_elements)
    seen: set[fx.Node] = set()
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(nodes):
        if node in run_first:
            continue
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                dying.setdefault(node, []).append(used)
    return dying


def _operator_of_users(target: Any) -> compat.OpOverload | None:
    """Returns the operator of a call if torch does not ship it and the overload is certain."""
    if isinstance(target, compat.OpOverloadPacket) and target.overloads() == ["default"]:
        target = target.default
    return target if isinstance(target, compat.OpOverload) and not is_trusted(target) else None


def _sizes_of_inputs(nodes: list[fx.Node]) -> dict[Any, str]:
    """Maps symbols to Python text: sizes and strides of inputs, and inputs that are numbers."""
    texts: dict[Any, str] = {}
    for node in nodes:
        value = node.meta.get("val", node.meta.get("example_value")) if node.op == "placeholder" else None
        found = [(value, node.name)]
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            found = [(size, f"{node.name}.shape[{dim}]") for dim, size in enumerate(value.shape)]
            found += [(stride, f"{node.name}.stride({dim})") for dim, stride in enumerate(value.stride())]
        for number, text in found:
            if isinstance(number, torch.SymInt) and isinstance(number.node.expr, compat.symbolic().Symbol):
                texts.setdefault(number.node.expr, text)
    return texts


def _function_hint(target: Any) -> str:
    if isinstance(target, compat.OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or "torch"
    return f"{module.rpartition('.')[2]}_{getattr(target, '__name__', type(target).__name__).strip('_')}"


def _constant_hint(value: Any) -> str:
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "minus_inf"}.get(str(value), "nan")
    return f"constant_{type(value).__name__}"


_ASSIGNED = re.compile(r"(\s+)(\w+)(?::| =)")
_SUBGRAPH = re.compile(r"\s*class (\w+)\(torch\.nn\.Module\):")

# torch's comment about nodes without stack traces; ours have the user's lines in another form.
_NO_STACK_TRACE = "# No stacktrace found for following nodes"


def graph_text(gm: fx.GraphModule) -> str:
    """Prints the graph as the method of a module; a comment marks each change of the user's line. Subgraphs follow."""
    graphs = {name.rpartition(".")[2]: part for name, part in gm.named_modules() if isinstance(part, fx.GraphModule)}
    user_lines = _user_lines(gm)
    lines: list[str] = []
    shown_line = ""
    for line in compat.readable_text(gm).splitlines():
        begins = _SUBGRAPH.match(line)
        if begins and begins[1] in graphs:
            user_lines, shown_line = _user_lines(graphs[begins[1]]), ""
        assigned = _ASSIGNED.match(line)
        where = user_lines.get(assigned[2]) if assigned else None
        if assigned and where is not None and where.comment() != shown_line:
            shown_line = where.comment()
            lines.append(f"{assigned[1]}# {shown_line}")
        if line.strip() != _NO_STACK_TRACE:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _user_lines(gm: fx.GraphModule) -> dict[str, Any]:
    """Maps the name of each operation to the user's line."""
    return {node.name: node.meta.get("user_location") for node in gm.graph.nodes if node.op != "get_attr"}


def first_location(gm: fx.GraphModule) -> UserLocation | None:
    """Returns the user's line of the first operation of a captured graph, if known."""
    known = (node.meta.get("user_location") for node in gm.graph.nodes if not is_switch(node.target))
    return next(filter(None, known), None)
