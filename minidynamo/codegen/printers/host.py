"""Owns the spelling of host programs: the Python function that allocates, launches, calls, frees and returns.

Order, reuse and lifetimes were decided by the memory planner; this file writes them down, one line per step.
"""

from __future__ import annotations

import enum
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Buffer, Compute, Extern, GetItem, Name, Origins
from minidynamo.codegen.ir.size import Extent, Size, group
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, HostProgram, Launch, Place, Return, Reuse, Step
from minidynamo.codegen.printers.base import Lines, extent_of
from minidynamo.codegen.runtime import random_numbers
from minidynamo.codegen.runtime.host_functions import count_as_new, on_gpu
from minidynamo.core.names import Namespace
from minidynamo.graph.boxed import UNBOXED
from minidynamo.graph.checked_results import Promise, check_number_of, is_trusted
from minidynamo.graph.rng_replay import draw, draw_again

ARITHMETIC: dict[Any, str] = {
    torch.Tensor.size: "{}.size({})",
    torch.Tensor.stride: "{}.stride({})",
    torch.sym_float: "float({})",
    operator.neg: "-{}",
    operator.add: "{} + {}",
    operator.sub: "{} - {}",
    operator.mul: "{} * {}",
    operator.truediv: "{} / {}",
    operator.floordiv: "{} // {}",
    operator.mod: "{} % {}",
    operator.pow: "{} ** {}",
}
"""How Python writes what numbers are made by, as the program did it."""


class Calling(enum.Enum):
    """What launchers take in front of the numbers of a kernel."""

    TENSORS = "tensors"
    ADDRESSES = "the addresses of tensors"
    ON_STREAM = "a stream, how many rows there are, and the addresses of tensors"


def print_host(
    program: HostProgram, launchers: Mapping[str, Callable[..., None]], calling: Calling
) -> tuple[str, dict[str, Any]]:
    """The source of `def call(args)` and the namespace that it runs in.

    `launchers` has what starts each kernel, by kernel name. `call` is boxed: it empties the list that it is given.
    """
    return _HostPrinter(program, launchers, calling).print()


class _HostPrinter:
    def __init__(self, program: HostProgram, launchers: Mapping[str, Callable[..., None]], calling: Calling) -> None:
        self.program = program
        self.launchers = launchers
        self.calling = calling
        self.lines = Lines("    ", "#")
        self.names = Namespace({*_names_of(program), *program.constants, "call"})
        self.addressed = _addressed(program)
        handing_over = any(isinstance(step, HandOver) for step in program.steps)
        self.receiver = self.names.fresh("hand_over") if handing_over else ""
        self.gpus: dict[torch.device, tuple[str, str]] = {}
        # The call that each result comes from.
        self.calls: dict[str, Extern | None] = {}
        # A gradient of another dtype is converted, as autograd does: no frame can run again for it.
        self.converts = handing_over

    def print(self) -> tuple[str, dict[str, Any]]:
        args = self.names.fresh("args")
        self.lines(f"# The host program of {self.program.name}.")
        with self.lines.block(f"def call({args}{f', {self.receiver}=None' if self.receiver else ''}):"):
            self.lines(f"if {args}.__class__ is not list:")
            self.lines(f"    raise TypeError({UNBOXED!r}.format({args}.__class__.__name__))")
            inputs = self.program.inputs
            if inputs:
                self.lines(f"{', '.join(inputs)}{',' if len(inputs) == 1 else ''} = {args}")
            self.lines(f"{args}.clear()")
            for number in self.program.prelude:
                self.lines(self.number(number))
            if self.calling is Calling.ON_STREAM:
                self.meet_gpus()
            for step in self.program.steps:
                self.lines.origins(origins_of(step))
                self.lines(self.step(step))
                if isinstance(step, (Extern, GetItem)):
                    self.lines(*self.check(step))
        self.lines("", "", "call._boxed_call = True")
        if self.receiver:
            self.lines("call._hands_over = True")
        return self.lines.text(), {**self.program.constants, **self.names.values}

    def number(self, number: Compute) -> str:
        """A number that is made of inputs."""
        pattern = ARITHMETIC.get(number.op) or f"{self.function(number.op)}({', '.join(['{}'] * len(number.args))})"
        return f"{number.out} = {pattern.format(*map(self.operand, number.args))}"

    def meet_gpus(self) -> None:
        """What stays the same throughout a call: the current stream of each GPU, and what makes tensors there."""
        for device in dict.fromkeys(step.kernel.device for step in self.program.steps if isinstance(step, Launch)):
            self.gpus[device] = stream, empty = self.names.fresh("stream"), self.names.fresh("empty")
            self.lines(f"{stream}, {empty} = {self.names.constant(on_gpu, 'on_gpu')}({self.value(device)})")

    def operand(self, value: Any) -> str:
        """An argument in parentheses, unless it is one name or literal."""
        text = group(value) if isinstance(value, Size) else self.value(value)
        return f"({text})" if text.startswith("-") else text

    def function(self, op: Any) -> str:
        return self.names.constant(compat.operator_function(op), _operator_name(op))

    def called(self, step: Extern) -> str:
        if step.op is torch.ops.aten.bernoulli.p and not step.kwargs:
            return self.bernoulli()
        if step.op is torch.ops.aten.bernoulli_.float and not step.kwargs:
            return self.names.constant(random_numbers.fill_bernoulli, "fill_bernoulli")
        return self.function(step.op)

    def bernoulli(self) -> str:
        return self.names.constant(random_numbers.bernoulli, "bernoulli_p")

    def step(self, step: Step) -> str:
        match step:
            case Allocate():
                return f"{step.buffer.name} = {self.allocation(step.buffer)}"
            case Reuse():
                layout = f"{_sizes(step.buffer.shape)}, {_sizes(step.buffer.stride)}"
                relaid = f"{step.source}.as_strided_({layout})" if step.relaid else step.source
                return f"{step.buffer.name} = {relaid}; del {step.source}"
            case Place():
                return f"{self.announced([step.source])}{step.buffer.name} = {self.laid_out(step)}"
            case Launch():
                launcher = self.names.constant(self.launchers[step.kernel.name], step.kernel.name)
                args = ", ".join(self.passed(step))
                stores = zip(step.kernel.writes, step.args[len(step.kernel.reads) :])
                written = [name for buffer, name in stores if buffer.name == name]
                return f"{self.announced(written)}{launcher}({args})"
            case Extern():
                arguments = [self.value(a) for a in step.args]
                arguments += [f"{key}={self.value(a)}" for key, a in step.kwargs]
                if step.op in (draw, draw_again) and step.args[0] == str(torch.ops.aten.bernoulli.p):
                    arguments[0] = self.bernoulli()
                return f"{step.out} = {self.called(step)}({', '.join(arguments)})"
            case GetItem():
                return f"{step.out} = {step.source}[{step.index}]"
            case Free():
                return f"del {', '.join(step.names)}"
            case HandOver(name, position):
                return f"if {self.receiver} is not None: {name} = {self.receiver}({position}, {name})"
            case Return():
                values = [self.value(v) for v in step.values]
                if step.counted:
                    self.lines(f"{self.names.constant(count_as_new, 'count_as_new')}({', '.join(step.counted)})")
                return f"return ({', '.join(values)}{',' if len(values) == 1 else ''})"

    def passed(self, step: Launch) -> Iterator[str]:
        """What a launcher is called with."""
        kernel = step.kernel
        if self.calling is Calling.ON_STREAM:
            yield from (self.gpus[kernel.device][0], str(extent_of(kernel.rows)))
        address = "" if self.calling is Calling.TENSORS else ".data_ptr()"
        yield from (name + address for name in step.args)
        yield from (n.name if isinstance(n, Scalar) else str(n) for n in kernel.numbers)

    def laid_out(self, step: Place) -> str:
        """The memory of an input, in the layout of what is written there."""
        old, new = self.program.input_buffers.get(step.source), step.buffer
        if old is None or (old.shape, old.stride) == (new.shape, new.stride):
            return step.source
        as_strided = self.names.constant(torch.as_strided, "as_strided")
        return f"{as_strided}({step.source}, {_sizes(new.shape)}, {_sizes(new.stride)})"

    def announced(self, names: Sequence[str]) -> str:
        """A statement in front of a write that tells autograd, and who may want to run the program again, about the
        inputs among what is written."""
        written = [name for name in names if name in self.program.inputs]
        if not written:
            return ""
        increment = self.names.constant(compat.increment_version, "increment_version")
        return f"{increment}(({', '.join(written)},)); "

    def check(self, step: Extern | GetItem) -> list[str]:
        """Statements that compare a result with what kernels and the code that gets the results rely on: fake tensors
        foretell the strides of ATen not for every build, and other operators may have any fake implementation."""
        call = step if isinstance(step, Extern) else self.calls.get(step.source)
        self.calls[step.out] = call
        if call is None or call.is_in_place or step.out in call.mutates:
            return []
        trusted = is_trusted(call.op)
        if step.layout is None:
            count = step.count if isinstance(step, Extern) and not trusted else None
            return [] if count is None else check_number_of(step.out, _label(call.op), count, self.names)
        if trusted and (step.aliases or step.out not in self.addressed):
            return []
        layout = step.layout
        shape, stride = [*map(str, layout.shape)], [*map(str, layout.stride)]
        promise = Promise(
            _label(call.op), shape, stride, layout.dtype, layout.device, trusted=trusted, converts=self.converts
        )
        return promise.check(step.out, self.names)

    def allocation(self, buffer: Buffer) -> str:
        shape, stride, dtype = _sizes(buffer.shape), _sizes(buffer.stride), self.value(buffer.dtype)
        if buffer.device.type == "cpu":
            return f"{self.names.constant(compat.empty_strided_cpu, 'empty_cpu')}({shape}, {stride}, {dtype})"
        if buffer.device in self.gpus:
            return f"{self.gpus[buffer.device][1]}({shape}, {stride}, {dtype})"
        empty = self.names.constant(torch.empty_strided, "empty_strided")
        return f"{empty}({shape}, {stride}, dtype={dtype}, device={self.value(buffer.device)})"

    def value(self, value: Any) -> str:
        """The text of an argument; what has no literal is bound in the namespace."""
        match value:
            case Name():
                return value.name
            case Size():
                return str(value)
            case tuple() | list():
                return f"[{', '.join(map(self.value, value))}]"
            case float() if not math.isfinite(value):
                return f'float("{value}")'
            case None | bool() | int() | float() | str():
                return repr(value)
            case torch.dtype():
                return self.names.constant(value, str(value).removeprefix("torch."))
            case _:
                return self.names.constant(value, str(value))


def _sizes(sizes: tuple[Extent, ...]) -> str:
    """A tuple of sizes."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def origins_of(step: Step) -> Origins:
    """What a step computes; nothing for those that only move names."""
    match step:
        case Launch():
            return step.kernel.origins
        case Extern() | GetItem():
            return step.origins
    return ()


def _addressed(program: HostProgram) -> set[str]:
    """Names whose strides somebody relies on: kernels, whoever gets the results, and views for them."""
    names: set[str] = set()
    for step in reversed(program.steps):
        match step:
            case Launch():
                names.update(step.args)
            case Return():
                names.update(value.name for value in step.values if isinstance(value, Name))
            case Reuse() | Place() if step.buffer.name in names:
                names.add(step.source)
            case Extern() | GetItem() if step.out in names:
                names.update(step.aliases)
    return names


def _label(op: Any) -> str:
    """The name of what is called, for messages."""
    return str(op.name()) if isinstance(op, compat.OpOverload) else getattr(op, "__name__", type(op).__name__)


def _operator_name(op: Any) -> str:
    return op.__name__ if isinstance(op, types.FunctionType) else str(op).removesuffix(".default")


def _names_of(program: HostProgram) -> set[str]:
    """Every name of a value in the host program."""
    names = {*program.inputs, *(number.out for number in program.prelude)}
    for step in program.steps:
        match step:
            case Allocate() | Reuse() | Place():
                names.add(step.buffer.name)
            case Extern() | GetItem():
                names.add(step.out)
    return names
