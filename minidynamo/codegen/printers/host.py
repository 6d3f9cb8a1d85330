"""Owns the text of host programs: the Python function that allocates, launches, calls, frees and returns.

The memory planner has decided order, reuse and lifetimes; here each step becomes a line.
"""

from __future__ import annotations

import enum
import math
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Buffer, Compute, Extern, GetItem, Name, Origins
from minidynamo.codegen.ir.size import Extent, Size, parenthesized
from minidynamo.codegen.lowering.views import RESTRIDING
from minidynamo.codegen.memory.plan import (
    Allocate,
    Free,
    Handing,
    HandOver,
    HostProgram,
    Launch,
    Overwrite,
    Return,
    Reuse,
    Step,
)
from minidynamo.codegen.printers.base import Lines, extent_of
from minidynamo.codegen.runtime import random_numbers
from minidynamo.codegen.runtime.host_functions import count_as_new, on_gpu
from minidynamo.codegen.runtime.host_text import HostText
from minidynamo.core.names import Namespace
from minidynamo.graph.boxed import run_steps
from minidynamo.graph.boxed_text import BoxedText
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
"""Function that computes a number -> its Python text."""


class Calling(enum.Enum):
    """The arguments that launchers take before the numbers of a kernel."""

    TENSORS = "tensors"
    IN_LIBRARY = "tensors; the launchers are in a C++ library, and a library draws random numbers"
    ON_STREAM = "a stream, the number of rows, and the addresses of tensors"


def print_host(
    program: HostProgram, launchers: Mapping[str, Callable[..., None]], calling: Calling
) -> tuple[HostText, dict[str, Any]]:
    """Returns the text of the host program and its globals.

    `launchers` maps the name of a kernel to the function that launches the kernel.
    """
    return _HostPrinter(program, launchers, calling).print()


class _HostPrinter:
    def __init__(self, program: HostProgram, launchers: Mapping[str, Callable[..., None]], calling: Calling) -> None:
        self.program = program
        self.launchers = launchers
        self.calling = calling
        self.draws_in_library = calling is Calling.IN_LIBRARY
        self.lines = Lines("    ", "#")
        self.names = Namespace({*_names_of(program), *program.constants, "call", "steps"})
        #: The views that are created from sizes and strides, which costs a third of the operator's call.
        self.reinterpreted = _reinterpreted(program)
        self.with_relevant_strides = _with_relevant_strides(program, self.reinterpreted)
        handing_over = any(isinstance(step, HandOver) for step in program.steps)
        self.receiver = self.names.fresh("hand_over") if handing_over else ""
        #: The name of the list in which the program yields a result, if the program runs in steps.
        self.handed = self.names.fresh("handed") if program.handing_over == Handing.IN_STEPS and self.receiver else ""
        self.gpus: dict[torch.device, tuple[str, str]] = {}
        # Result -> the extern call with this result.
        self.calls: dict[str, Extern | None] = {}
        # A gradient of another dtype is converted, as autograd does: a backward graph cannot fall back to a rerun of
        # the frame.
        self.converts = bool(program.handing_over)

    def print(self) -> tuple[HostText, dict[str, Any]]:
        args = self.names.fresh("args")
        for number in self.program.prelude:
            self.lines(self.number(number))
        if self.calling is Calling.ON_STREAM:
            self.print_gpu_setup()
        bound, checks = "", list[str]()  # the checks of a result follow the statement that frees the arguments
        *steps, end = self.program.steps
        for step in steps:
            self.lines.origins(origins_of(step))
            if not isinstance(step, Free) or bound in step.names:
                self.lines(*checks)
                checks = []
            self.lines(self.step(step))
            if isinstance(step, (Extern, GetItem)):
                bound, checks = step.out, self.check(step)
            elif isinstance(step, Free):
                self.lines(*checks)
                checks = []
        self.lines(*checks)
        result = self.step(end)
        body = BoxedText(self.program.inputs, tuple(self.lines), result)
        runner = self.names.constant(run_steps, "run_steps") if self.handed else ""
        text = HostText(self.program.name, args, body, self.receiver, runner)
        return text, {**self.program.constants, **self.names.values}

    def result(self, end: Return) -> str:
        """Returns the tuple of results; before, prints the statement that resets their version counters."""
        if end.versions_to_reset:
            count = self.names.constant(count_as_new, "count_as_new")
            self.lines(f"{count}({', '.join(end.versions_to_reset)})")
        values = [self.value(v) for v in end.values]
        return f"({', '.join(values)}{',' if len(values) == 1 else ''})"

    def number(self, number: Compute) -> str:
        """Returns the assignment of a number that is computed from inputs."""
        pattern = ARITHMETIC.get(number.op) or f"{self.function(number.op)}({', '.join(['{}'] * len(number.args))})"
        return f"{number.out} = {pattern.format(*map(self.operand, number.args))}"

    def print_gpu_setup(self) -> None:
        """Prints the assignments that hold throughout a call: the current stream of each GPU, and its allocation
        function."""
        for device in dict.fromkeys(step.kernel.device for step in self.program.steps if isinstance(step, Launch)):
            self.gpus[device] = stream, empty = self.names.fresh("stream"), self.names.fresh("empty")
            self.lines(f"{stream}, {empty} = {self.names.constant(on_gpu, 'on_gpu')}({self.value(device)})")

    def operand(self, value: Any) -> str:
        """Returns an argument, in parentheses unless it is a single name or literal."""
        text = parenthesized(value) if isinstance(value, Size) else self.value(value)
        return f"({text})" if text.startswith("-") else text

    def function(self, op: Any) -> str:
        return self.names.constant(compat.operator_function(op), _operator_name(op))

    def called(self, step: Extern) -> str:
        if self.draws_in_library and step.op is torch.ops.aten.bernoulli.p and not step.kwargs:
            return self.bernoulli()
        if self.draws_in_library and step.op is torch.ops.aten.bernoulli_.float and not step.kwargs:
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
            case Overwrite():
                return f"{self.version_increment([step.source])}{step.buffer.name} = {self.input_memory(step)}"
            case Launch():
                launcher = self.names.constant(self.launchers[step.kernel.name], step.kernel.name)
                args = ", ".join(self.launch_arguments(step))
                stores = zip(step.kernel.writes, step.args[len(step.kernel.reads) :])
                written = [name for buffer, name in stores if buffer.name == name]
                return f"{self.version_increment(written)}{launcher}({args})"
            case Extern() if step.out in self.reinterpreted:
                assert step.layout is not None
                layout = f"{_sizes(step.layout.shape)}, {_sizes(step.layout.stride)}"
                reinterpret = self.names.constant(compat.reinterpret_tensor, "reinterpret")
                return f"{step.out} = {reinterpret}({self.value(step.args[0])}, {layout}, 0)"
            case Extern():
                arguments = [self.value(a) for a in step.args]
                arguments += [f"{key}={self.value(a)}" for key, a in step.kwargs]
                draws = self.draws_in_library and step.op in (draw, draw_again)
                if draws and step.args[0] == str(torch.ops.aten.bernoulli.p):
                    arguments[0] = self.bernoulli()
                return f"{step.out} = {self.called(step)}({', '.join(arguments)})"
            case GetItem():
                return f"{step.out} = {step.source}[{step.index}]"
            case Free():
                return f"del {', '.join(step.names)}"
            case HandOver(name, position) if self.handed:  # while the program stops, the caller has the only reference
                return f"{self.handed} = [{name}]; del {name}; {name} = yield {position}, {self.handed}"
            case Return():
                return self.result(step)
            case HandOver(name, position):
                return f"if {self.receiver} is not None: {name} = {self.receiver}({position}, {name})"

    def launch_arguments(self, step: Launch) -> Iterator[str]:
        """Yields the arguments of a launch."""
        kernel = step.kernel
        if self.calling is Calling.ON_STREAM:
            yield from (self.gpus[kernel.device][0], str(extent_of(kernel.rows)))
        address = ".data_ptr()" if self.calling is Calling.ON_STREAM else ""
        yield from (name + address for name in step.args)
        yield from (n.name if isinstance(n, Scalar) else str(n) for n in kernel.numbers)

    def input_memory(self, step: Overwrite) -> str:
        """Returns the memory of an input, in the layout of the value that is written there."""
        old, new = self.program.input_buffers.get(step.source), step.buffer
        if old is None or (old.shape, old.stride) == (new.shape, new.stride):
            return step.source
        as_strided = self.names.constant(torch.as_strided, "as_strided")
        return f"{as_strided}({step.source}, {_sizes(new.shape)}, {_sizes(new.stride)})"

    def version_increment(self, names: Sequence[str]) -> str:
        """Returns a statement that increments the version counters of the inputs among `names`, to run before they are
        written.

        Autograd reads the counters, and so does a rerun of the frame.
        """
        written = [name for name in names if name in self.program.inputs]
        if not written:
            return ""
        increment = self.names.constant(compat.increment_version, "increment_version")
        return f"{increment}(({', '.join(written)},)); "

    def check(self, step: Extern | GetItem) -> list[str]:
        """Returns statements that compare a result with the layout that kernels and callers rely on.

        Fake tensors do not predict the strides of ATen for every build, and other operators may have any fake
        implementation.
        """
        call = step if isinstance(step, Extern) else self.calls.get(step.source)
        self.calls[step.out] = call
        if call is None or call.is_in_place or step.out in call.mutates:
            return []
        trusted = is_trusted(call.op)
        if step.layout is None:
            count = step.count if isinstance(step, Extern) and not trusted else None
            return [] if count is None else check_number_of(step.out, _label(call.op), count, self.names)
        if trusted and (step.aliases or step.out not in self.with_relevant_strides):
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
        """Returns the text of an argument; a value without a literal is bound in the namespace."""
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
    """Returns a tuple of sizes."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def origins_of(step: Step) -> Origins:
    """Returns the origins of the values that a step computes; () for a step that only moves names."""
    match step:
        case Launch():
            return step.kernel.origins
        case Extern() | GetItem():
            return step.origins
    return ()


def _reinterpreted(program: HostProgram) -> set[str]:
    """Returns the views that need no operator. Writes through a view count as writes to its base, and the caller sees
    the base of a returned view. So operators create the views that are written or returned, with all views between them
    and their bases. For gradients, autograd sees no base."""
    returned = [value for step in program.steps if isinstance(step, Return) for value in step.values]
    visible = {value.name for value in returned if isinstance(value, Name) and not program.handing_over}
    found: set[str] = set()
    for step in reversed(program.steps):
        if isinstance(step, Extern):
            visible.update(step.mutates)
            if step.out in visible:
                visible.update(step.aliases)
            elif step.is_view and step.op in RESTRIDING and step.layout is not None:
                found.add(step.out)
        elif isinstance(step, Launch):
            visible.update(step.args[len(step.kernel.reads) :])
        elif isinstance(step, GetItem) and step.out in visible:
            visible.update((step.source, *step.aliases))
        elif isinstance(step, (Reuse, Overwrite)) and step.buffer.name in visible:
            visible.add(step.source)
    return found


def _with_relevant_strides(program: HostProgram, reinterpreted: Collection[str]) -> set[str]:
    """Returns the names whose strides kernels, the caller or views rely on."""
    names: set[str] = set()
    for step in reversed(program.steps):
        match step:
            case Launch():
                names.update(step.args)
            case Return():
                names.update(value.name for value in step.values if isinstance(value, Name))
            case Reuse() | Overwrite() if step.buffer.name in names:
                names.add(step.source)
            case Extern() | GetItem() if step.out in names or step.out in reinterpreted:
                names.update(step.aliases)
    return names


def _label(op: Any) -> str:
    """Returns the name of the called operator, for messages."""
    return str(op.name()) if isinstance(op, compat.OpOverload) else getattr(op, "__name__", type(op).__name__)


def _operator_name(op: Any) -> str:
    return op.__name__ if isinstance(op, types.FunctionType) else str(op).removesuffix(".default")


def _names_of(program: HostProgram) -> set[str]:
    """Returns the names of the values in the host program."""
    names = {*program.inputs, *(number.out for number in program.prelude)}
    for step in program.steps:
        match step:
            case Allocate() | Reuse() | Overwrite():
                names.add(step.buffer.name)
            case Extern() | GetItem():
                names.add(step.out)
    return names
