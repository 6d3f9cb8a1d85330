"""Owns the record of a captured backward: one statement per formula, hook, sum of gradients, and write to `.grad`.

torch walks the graph of autograd, and calls a method of `BackwardTape` for each step. The arguments are fake tensors,
one for each tensor of the backward. At the end the tape writes a Python function, which takes the saved tensors and
runs the statements in autograd's order. `backward.py` compiles the function.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.core import artifacts
from minidynamo.core.directives import DISABLED, allow_in_graph
from minidynamo.core.records import record
from minidynamo.frontend.captured.order import positions
from minidynamo.graph import backward_calls as calls
from minidynamo.graph.backward_calls import InlinedBackward
from minidynamo.tracer.graph.dead_code import FORMULA, overload_may_raise

PARAMETERS = "inputs, sizes, scalars, hooks, packed"


class Name(str):
    """The name of a variable of the written function. A plain string is an argument of an operation."""

    __slots__ = ()


@record
class Statement:
    """A call in the written function."""

    #: the number of the autograd node, in the order of torch's walk
    node: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    #: the names of the results; None for results that are not used
    results: list[Name | None] | Name | None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def read(self) -> list[Name]:
        """Returns the names that the statement reads."""
        return [*_names(self.args), *_names([*self.kwargs.values()])]


def _names(value: Any) -> Iterable[Name]:
    if isinstance(value, Name):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _names(item)


class BackwardTape:
    """The compiler that torch calls during one capture.

    `finish(function, tape)` takes the written function. It returns a wrapper and the first argument of the wrapper:
    torch calls the wrapper in each backward.
    """

    def __init__(self, finish: Callable[[Callable[..., Any], BackwardTape], tuple[Any, Any]]) -> None:
        self.finish = finish
        self.statements: list[Statement] = []
        self.node = 0
        self.nodes: list[str] = []
        self.counter = itertools.count()
        #: The name of each fake tensor, by its id, and the tensor itself, which keeps the id in use.
        self.names: dict[int, tuple[Name, torch.Tensor]] = {}
        #: A key of the memory of each value: equal keys, shared memory. None if the memory is unknown.
        self.memory: dict[Name, object] = {}
        #: The values whose memory has each element once, without gaps.
        self.dense: set[Name] = set()
        #: The gradients that autograd adds for one input of a node, each with the node that computed it, by the name of
        #: the sum.
        self.sums: dict[Name, list[tuple[int, Name]]] = {}
        self.globals: dict[str, Any] = {}
        self.constants: dict[Any, Name] = {}
        self.modes = contextlib.ExitStack()
        self.sizes: Sequence[Any] = ()
        self.scalars: Sequence[Any] = ()
        #: The keys of memory that belongs to the caller or to a constant.
        self.borrowed: set[object] = set()
        #: False if the size of a fake tensor is unknown.
        self.is_exact = True
        #: False if a gradient is sparse.
        self.is_strided = True
        #: The positions in `hooks` that hold the context of a custom Function.
        self.contexts: list[int] = []

    # Called by torch

    def begin_capture(
        self, inputs: list[Any], sizes: list[int], scalars: list[Any], origins: Any, accumulates: bool, checks: bool
    ) -> tuple[str, list[Any], list[Any], list[Any]]:
        """Returns fake tensors for the saved tensors, and symbols for the sizes that vary and for the numbers."""
        running = compat.running_backward()
        self.roots, self.requested = ((), ()) if running is None else running
        self.fake_mode = compat.fake_mode_for_backward()
        fakes = [self._fake(value, Name(f"i{k}")) for k, value in enumerate(inputs)]
        self.inputs = [self.names[id(value)][0] for value in fakes]
        self.borrowed = {self.memory[name] for name in self.inputs}
        self.sizes = [compat.symbolic_number(self.fake_mode, value, f"sizes[{k}]") for k, value in enumerate(sizes)]
        self.scalars = [
            compat.symbolic_number(self.fake_mode, value, f"scalars[{k}]") for k, value in enumerate(scalars)
        ]
        self.modes.enter_context(compat.on_fakes(self.fake_mode))
        return "captured backward", fakes, list(self.sizes), list(self.scalars)

    def set_node_origin(self, name: str, number: int, node: Any) -> None:
        """Starts the next node."""
        self.node = number
        self.nodes.append(name)

    def bind_function(self, name: str, function: Any, is_custom: bool, is_traceable: bool) -> str:
        """Registers the formula of a kind of node."""
        return compat.add_backward_formula(name, function, is_custom, is_traceable)

    def apply_functional(self, name: str, gradients: Sequence[Any], args: Sequence[Any], metadata: Any) -> list[Any]:
        """Records the formula of a node."""
        return self._formula(name, (list(gradients), *args), len(metadata))

    def validate_outputs(self, _: Any, outputs: Sequence[Any], args: Sequence[Any], metadata: Any) -> list[Any]:
        """Records the check of the gradients that a node returns. The check also sums over broadcast dimensions, and
        converts dtypes."""
        if not outputs:
            return []
        return self._formula("validate_outputs", (list(outputs), *args), len(outputs))

    def accumulate(self, total: Any, gradient: Any) -> Any:
        """Records the sum of two gradients of one input of a node."""
        result = self._like(total)
        name = self._named(result)
        terms: list[tuple[int, Name]] = []
        for value in map(self._name, (total, gradient)):
            terms += self.sums.pop(value) if value in self.sums else [(self.node_of(value), value)]
        self.sums[name] = terms
        return result

    def accumulate_grad(self, leaf: Any, *args: Any) -> Any:
        """Records the addition to `.grad` of a leaf. Torch passes the gradient, then whether hooks follow. Newer
        releases pass the earlier `.grad` first, and expect the new `.grad` as the result; older releases expect None.
        """
        *earlier, gradient, _ = args
        self._record(calls.add_to_leaf, (leaf, gradient, False), None)
        return self._result(leaf) if earlier else None

    def tensor_pre_hook(self, inputs: list[Any], hook: int, i: int) -> list[Any]:
        """Records a hook of a tensor."""
        inputs[i] = self._call(calls.call_hook, (self._item("hooks", hook), inputs[i]), inputs[i])
        return inputs

    def cpp_tensor_pre_hook(self, inputs: list[Any], hook: int, i: int) -> list[Any]:
        """Records the C++ hooks of a tensor."""
        inputs[i] = self._call(calls.call_cpp_hooks, (hook, inputs[i]), inputs[i])
        return inputs

    def pre_hook(self, inputs: Sequence[Any], hook: int) -> list[Any]:
        """Records a hook before a node."""
        return self._calls(calls.call_node_hook, (self._item("hooks", hook), [*inputs]), inputs)

    def post_hook(self, outputs: Sequence[Any], inputs: Sequence[Any], hook: int) -> list[Any]:
        """Records a hook after a node."""
        return self._calls(calls.call_node_hook, (self._item("hooks", hook), [*outputs], [*inputs]), outputs)

    def post_acc_grad_hook(self, leaf: Any, hook: int) -> list[Any]:
        """Records a hook after accumulation into a leaf."""
        self._record(calls.call_leaf_hook, (self._item("hooks", hook), leaf), None)
        return [leaf]

    def unpack_hook(self, hook: int, data: int) -> Any:
        """Records the unpacking of a saved tensor by the user's hook; the size of its result is unknown."""
        self.is_exact = False
        return self._call(_call, (self._item("hooks", hook), self._item("packed", data)), torch.empty(0))

    def proxy_call_backward(
        self, inputs: Sequence[Any], metadata: Sequence[Any], saved: Sequence[Any], number: int, context: Any, *_: Any
    ) -> tuple[Any, ...]:
        """Records the backward of a custom Function."""
        function = context._forward_cls
        inlined = self._inlined(inputs, saved, number, context)
        if inlined is not None:
            return tuple(inlined[: len(metadata)])
        likes = [None if each is None else self._empty(*each) for each in metadata]
        state, needed = self._item("hooks", number), context.needs_input_grad
        if DISABLED in vars(function.backward):
            return tuple(self._calls(calls.call_opaque, (function.backward, state, [*saved], *inputs), likes))
        self.contexts.append(number)
        return tuple(self._calls(calls.call_backward, (function.backward, state, [*saved], needed, *inputs), likes))

    def _inlined(self, inputs: Sequence[Any], saved: Sequence[Any], number: int, context: Any) -> Sequence[Any] | None:
        """Records the operations of the backward of a compiled graph. None: the compiled code must run."""
        inlined = getattr(context._forward_cls, "inlined", None)
        known = [value is None or self.memory[self._name(value)] is not None for value in inputs]
        if inlined is None or not self.is_exact or (self.sizes and not all(known)):
            return None
        count = len(self.statements)
        try:
            # The graph depends on strides, and those of a gradient that the user's code returns may differ.
            inputs = [value if sure else self._with_strides(value) for value, sure in zip(inputs, known)]
            results = inlined(context, saved, inputs)
            if isinstance(results, InlinedBackward):
                results = results.returned(self._graph(results, number, context))
        except Exception:  # an error here would leave fake tensors at autograd's nodes
            del self.statements[count:]
            return None
        return results  # type: ignore[no-any-return]

    def _with_strides(self, value: Any) -> Any:
        return self._call(calls.with_strides, (value, list(value.stride())), value)

    def _graph(self, inlined: InlinedBackward, number: int, context: Any) -> list[Any]:
        """Records the nodes of a graph."""
        inputs = iter([self._number(number, context, i) if isinstance(i, int) else i for i in inlined.args])
        env: dict[fx.Node, Any] = {}
        for node in inlined.graph.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "get_attr":
                env[node] = self._constant_tensor(getattr(inlined.graph, node.target))
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = self._operation(node.target, args, kwargs)
            else:
                results: Any = fx.map_arg(node.args[0], env.__getitem__)
        return list(results)

    def _operation(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records an operation of a graph, and runs it on the fake tensors."""
        if function is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        with torch.no_grad():
            computed = function(*args, **kwargs)
        several = isinstance(computed, (tuple, list))
        results = [self._fresh(value) for value in computed] if several else [self._fresh(computed)]
        names = [None if value is None else self._name_of_result(value) for value in results]
        target = names if several else names[0]
        self.statements.append(Statement(self.node, _checked(function), self._args(args), target, self._args(kwargs)))
        return tuple(results) if several else results[0]

    def call_copy_slices_prologue(self, inputs: Sequence[Any], *layouts: Any) -> list[Any]:
        """Records the start of the backward of a write to a part of a tensor: the gradient is copied."""
        return self._calls(calls.begin_slice, (inputs[0], *layouts), [inputs[0]] * 3)

    def call_copy_slices_epilogue(self, needed: Any, result: Any, gradients: Sequence[Any], part: Any) -> list[Any]:
        """Records the end of that backward: the gradient of the part is written into the copy."""
        return self._calls(calls.end_slice, (needed, result, [*gradients], part), gradients)

    def end_capture(self, outputs: Sequence[Any]) -> tuple[Any, Any]:
        """Writes the function."""
        returned = [self._name_or_none(value) for value in outputs]
        self.modes.close()
        return self.finish(self._write(returned), self)

    def close(self) -> None:
        """Ends the capture, also after an error."""
        self.modes.close()

    # Values

    def _fake(self, value: torch.Tensor, name: Name) -> torch.Tensor:
        fake = compat.fake_like(self.fake_mode, value)
        if fake is None:
            self.is_exact, fake = False, torch.empty(0)
        self._bind(fake, name)
        return fake

    def _bind(self, value: torch.Tensor, name: Name) -> None:
        self.names[id(value)] = name, value
        self.is_strided &= value.layout is torch.strided
        if _is_dense(value):
            self.dense.add(name)
        self.memory[name] = _memory(value)

    def _fresh(self, value: Any) -> Any:
        """Returns a new fake tensor or a new symbol for a result, also if the operation returned an argument."""
        if isinstance(value, torch.Tensor):
            return value.detach()
        return None if value is None else self._symbol(compat.hint_of_number(value))

    def _symbol(self, value: Any) -> Any:
        return compat.symbolic_number(self.fake_mode, value, f"numbers[{next(self.counter)}]")

    def _name_of_result(self, value: Any) -> Name:
        return self._named(value) if isinstance(value, torch.Tensor) else Name(compat.text_of_number(value))

    def _number(self, hook: int, context: Any, index: int) -> Any:
        """Returns a symbol for a number in the context of a node."""
        number = self._symbol(context.numbers[index])
        name, number_text = Name(compat.text_of_number(number)), Name(f"hooks[{hook}].numbers[{index}]")
        self.contexts.append(hook)
        self.statements.append(Statement(self.node, calls.same, (number_text,), name))
        return number

    def _constant_tensor(self, value: torch.Tensor) -> torch.Tensor:
        fake = self._fake(value, self._constant(value))
        self.borrowed.add(self.memory[self.names[id(fake)][0]])
        return fake

    def _named(self, value: torch.Tensor) -> Name:
        name = Name(f"v{next(self.counter)}")
        self._bind(value, name)
        return name

    def _like(self, value: Any) -> torch.Tensor:
        """Returns a new fake tensor like `value`, in new memory."""
        with contextlib.suppress(Exception):
            return torch.empty_like(value)
        return torch.empty(0)

    def _empty(self, layout: Any, device: Any, dtype: Any, size: Any) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, layout=layout, device=device)

    def _name(self, value: torch.Tensor) -> Name:
        known = self.names.get(id(value))
        if known is not None:
            return known[0]
        # The tensor is new: autograd has replaced a missing gradient by zeros.
        name = self._named(value)
        args = (list(value.shape), value.dtype, value.device)
        self.statements.append(Statement(self.node, _zeros, self._args(args), name))
        return name

    def _name_or_none(self, value: Any) -> Name | None:
        return None if value is None else self._name(value)

    def _item(self, container: str, index: int) -> Name:
        return Name(f"{container}[{index}]")

    def node_of(self, name: Name) -> int:
        """Returns the number of the node that computed a value."""
        for statement in reversed(self.statements):
            if statement.results == name or (isinstance(statement.results, list) and name in statement.results):
                return statement.node
        return 0

    def _args(self, value: Any) -> Any:
        """Returns arguments with names in place of fake tensors and symbols."""
        if isinstance(value, dict):
            return {name: self._args(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(self._args(item) for item in value)
        if isinstance(value, torch.Size):
            return [self._args(item) for item in value]
        if isinstance(value, torch.Tensor):
            return self._name(value)
        if isinstance(value, compat.SYMBOLIC_NUMBERS):
            return Name(compat.text_of_number(value))
        return value

    # Statements

    def _record(self, function: Callable[..., Any], args: tuple[Any, ...], results: Any) -> None:
        self.statements.append(Statement(self.node, function, self._args(args), results))

    def _result(self, like: Any) -> torch.Tensor:
        result = self._like(like)
        self._named(result)
        return result

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], like: Any) -> Any:
        """Records a call of the user's code, which returns one value like `like`."""
        return self._record_user_code(function, args, [like], is_list=False)[0]

    def _calls(self, function: Callable[..., Any], args: tuple[Any, ...], likes: Sequence[Any]) -> list[Any]:
        return self._record_user_code(function, args, likes, is_list=True)

    def _record_user_code(
        self, function: Callable[..., Any], args: tuple[Any, ...], likes: Sequence[Any], *, is_list: bool
    ) -> list[Any]:
        """Records a call of the user's code: the memory of the results is unknown."""
        args = self._args(args)
        results = [None if like is None else self._like(like) for like in likes]
        names = [None if result is None else self._named(result) for result in results]
        self.memory.update({name: None for name in names if name is not None})
        self.statements.append(Statement(self.node, function, args, names if is_list else names[0]))
        return results

    def _formula(self, name: str, args: tuple[Any, ...], count: int) -> list[Any]:
        """Records a formula of torch, and runs it on the fake tensors."""
        formula, is_traceable = compat.backward_formula(name)
        computed = self._run(formula, args) if is_traceable else None
        if computed is not None and name == "validate_outputs" and self._is_same(args[0], computed):
            return list(args[0])
        likes = [torch.empty(0)] * count if computed is None else computed
        results = [None if value is None else value.detach() for value in likes]
        args = self._args(args)
        names = [None if result is None else self._named(result) for result in results]
        if computed is None:
            self.memory.update({each: None for each in names if each is not None})
        self.statements.append(Statement(self.node, _in_graph(name), args, names))
        return results

    def _run(self, formula: Callable[..., Any], args: tuple[Any, ...]) -> list[Any] | None:
        if not self.is_exact:
            return None
        try:
            with torch.no_grad():
                return list(formula(*args))
        except Exception:
            self.is_exact = False
            return None

    def _is_same(self, before: Sequence[Any], after: Sequence[Any]) -> bool:
        """Returns whether a check returns its arguments in all calls of the written function."""
        known = all(value is None or self.memory[self._name(value)] is not None for value in before)
        return known and not (self.sizes or self.scalars) and all(a is b for a, b in zip(before, after))

    # Text

    def _write(self, returned: list[Name | None]) -> Callable[..., Any]:
        position = positions(self.nodes, self.roots, self.requested)
        ordered = self._with_sums(position)
        self._reuse_memory(ordered, returned)
        last = {name: k for k, statement in enumerate(ordered) for name in statement.read()}
        lines = [f"def backward({PARAMETERS}):"]
        lines += [f"    {', '.join(self.inputs)}, = inputs"] if self.inputs else []
        lines += ["    inputs.clear()"]
        for source, numbers in (("sizes", self.sizes), ("scalars", self.scalars)):
            lines += [f"    {compat.text_of_number(number)} = {source}[{k}]" for k, number in enumerate(numbers)]
        known = {*self.inputs}
        unused = [name for name in self.inputs if name not in last and name not in returned]
        lines += [f"    del {', '.join(unused)}"] if unused else []
        for k, statement in enumerate(ordered):
            lines.append(f"    {self._line(statement)}")
            results = statement.results if isinstance(statement.results, list) else [statement.results]
            known.update(name for name in results if name is not None)
            dead = [n for n in dict.fromkeys([*statement.read(), *filter(None, results)]) if n in known]
            dead = [name for name in dead if last.get(name, k) == k and name not in returned]
            lines += [f"    del {', '.join(dead)}"] if dead else []
            known.difference_update(dead)
        lines.append(f"    return [{', '.join(map(str, returned))}]")
        return artifacts.load("backward", "backward", "\n".join(lines) + "\n", self.globals, "backward")

    def _line(self, statement: Statement) -> str:
        args = [*map(self._text, statement.args)]
        args += [f"{name}={self._text(value)}" for name, value in statement.kwargs.items()]
        called = f"{self._global(statement.function)}({', '.join(args)})"
        results = statement.results
        if results is None:
            return called
        if isinstance(results, Name):
            return f"{results} = {called}"
        return f"{', '.join(name or '_' for name in results)}, = {called}"

    def _global(self, function: Callable[..., Any]) -> str:
        name = re.sub(r"\W", "_", function.__name__)
        if self.globals.setdefault(name, function) is not function:
            name = self._constant(function)
        return name

    def _constant(self, value: Any) -> Name:
        for name, known in self.globals.items():
            if known is value:
                return Name(name)
        name = Name(f"c{len(self.globals)}")
        self.globals[name] = value
        return name

    def _text(self, value: Any) -> str:
        if isinstance(value, Name):
            return str(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, tuple):
            return f"({', '.join(map(self._text, value))}{',' * (len(value) == 1)})"
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return self._constant(value)

    def _with_sums(self, position: Mapping[int, int]) -> list[Statement]:
        """Returns all statements in autograd's order. A sum adds gradients in the order in which their nodes run."""
        sums: list[Statement] = []
        for name, unordered in self.sums.items():
            terms = sorted(unordered, key=lambda term: position[term[0]])
            result = terms[0][1]
            for k, (node, term) in enumerate(terms[1:], 2):
                partial = name if k == len(terms) else Name(f"v{next(self.counter)}")
                self.memory.setdefault(partial, object())
                self.dense.add(partial)
                sums.append(Statement(node, calls.add, (result, term), partial))
                result = partial
        return sorted([*self.statements, *sums], key=lambda statement: position[statement.node])

    def _reuse_memory(self, ordered: list[Statement], returned: Sequence[Name | None]) -> None:
        """Lets sums and leaves reuse the memory of a gradient that no later statement reads.

        If sizes vary, no memory is reused: two gradients may share memory in some calls only.
        """
        if self.sizes or self.scalars:
            return
        last: dict[object, int] = {}
        for k, statement in enumerate(ordered):
            for name in statement.read():
                last[self.memory.get(name)] = k
        kept = self.borrowed | {self.memory[name] for name in returned if name is not None} | {None}
        for k, statement in enumerate(ordered):
            if statement.function is calls.add_to_leaf:
                leaf, gradient, _ = statement.args
                memory = None if gradient is None else self.memory.get(gradient)
                is_owned = memory not in kept and last[memory] == k
                statement.args = (leaf, gradient, is_owned)
                kept |= {memory} if is_owned else set()
            elif statement.function is calls.add and isinstance(statement.results, Name):
                total, gradient = statement.args
                memory, result = self.memory[total], statement.results
                is_owned = memory not in kept and last[memory] == k and memory != self.memory[gradient]
                if is_owned and total in self.dense:
                    statement.function = calls.add_in_place
                    last[memory] = last.get(self.memory[result], k)
                    self.memory[result] = memory


def _memory(value: torch.Tensor) -> object:
    try:
        return compat.memory_of(value)
    except (RuntimeError, NotImplementedError):
        return None


def _is_dense(value: torch.Tensor) -> bool:
    """Returns whether the memory of a tensor has each element once, without gaps."""
    if value.layout is not torch.strided:
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(value.stride(), value.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device=device)


_functions: dict[str, Callable[..., Any]] = {}


def _in_graph(name: str) -> Callable[..., Any]:
    """Returns a function that calls a formula. The tracer puts the call into the graph."""
    if name not in _functions:
        formula, is_traceable = compat.backward_formula(name)

        def call(gradients: Sequence[Any], *args: Any) -> Any:
            return formula(gradients, *args)

        call.__name__ = call.__qualname__ = name
        if compat.is_formula_of_torch(name):
            setattr(call, FORMULA, True)
        _functions[name] = allow_in_graph(call) if is_traceable else formula
    return _functions[name]


@functools.cache
def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operator, marked as one that raises no error if forward has checked the positions."""
    if not isinstance(function, compat.OpOverload) or function.namespace != "aten":
        return function
    has_effects = function._schema.is_mutable or torch.Tag.nondeterministic_seeded in function.tags
    if has_effects or not overload_may_raise(function):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = re.sub(r"\W", "_", function.__name__)
    setattr(call, FORMULA, True)
    return allow_in_graph(call)
