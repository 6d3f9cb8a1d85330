"""Owns the conversion of one frame from code object to entry: capture, backend, residual program.

It does not decide when to compile a frame, calls no entries (`dispatcher.py` does both), and knows no backend by name.
The frame's owner provides resume points and compiled callees.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch.fx
from torch.autograd.graph import saved_tensors_hooks

from minidynamo import compat
from minidynamo.backends.registry import is_own
from minidynamo.bytecode.analysis import starred_parameters, written_slots
from minidynamo.bytecode.breaks import run_steps
from minidynamo.bytecode.instructions import decode
from minidynamo.bytecode.layout import CELL, NULL, VALUE, FramePoint, exits, frame_point
from minidynamo.compat import load_fake_tensors
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.compile_scope import STACK_FRAMES
from minidynamo.core.events import notice, phase, publish
from minidynamo.core.lazy_modules import load_once
from minidynamo.core.records import record
from minidynamo.errors import (
    ArgumentError,
    BackendError,
    ComptimeError,
    DeclaredSizeFixed,
    Diagnostic,
    GraphBreak,
    InternalError,
    MinidynamoError,
    ResultDiffers,
    SkipFrame,
    Unsupported,
    UserLocation,
    summary,
)
from minidynamo.frontend.comptime_context import ComptimeContext  # noqa: F401, runs the module: it has handlers
from minidynamo.frontend.donation import stolen_arguments
from minidynamo.frontend.pieces import NOTHING, Piece, piece_of
from minidynamo.frontend.sharing import Origin, Owner
from minidynamo.graph.boxed import BoxedCallable, first_location, graph_text
from minidynamo.graph.checked_results import count_wrong_operators
from minidynamo.graph.options import BackendKey, CompileOptions
from minidynamo.graph.rank_check import check_ranks
from minidynamo.graph.saved_tensor_hooks import hooks_in_force, inlining
from minidynamo.guards.cache import Entry, make_entry
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.profile import Finiteness, FrameProfile
from minidynamo.guards.source import Constant, Item, Local, Result
from minidynamo.tracer.capture.frame import trace_frame
from minidynamo.tracer.capture.predicted_profile import predicted, predicted_of_callee
from minidynamo.tracer.capture.rerun import RerunOptions
from minidynamo.tracer.capture.residual import ResidualContext, print_residual
from minidynamo.tracer.frames.runtime_asserts import calls_operators_of_users
from minidynamo.tracer.frames.unrolling import constants, newly_constant
from minidynamo.tracer.records.traced_frame import Break, FrameRequest, Null, StackSlot, TracedFrame
from minidynamo.tracer.runtime.graph_failures import Failure
from minidynamo.tracer.trace_rules import rule_for
from minidynamo.variables.callables import CellVariable

# Containers of modules share their code, and the rest of each loop has a version of its own. Later versions run loops
# item by item, and fit every container.
MOST_OPENED_LOOPS = 4


class FrameOwner(Owner, Protocol):
    """The compiled function that a frame belongs to."""

    @property
    def options(self) -> CompileOptions:
        """Returns the options that the user passed to `compile`."""
        ...

    def expect_profile(self, point: FramePoint, profile: FrameProfile) -> None:
        """Adds the predicted profile of the values with which a frame will continue at `point`."""
        ...

    def expect_call_profile(self, code: types.CodeType, profile: FrameProfile) -> None:
        """Adds the predicted profile of the arguments of a call, at a break, of a function with this code."""
        ...


@dataclass(frozen=True)
class FrameToConvert:
    """A frame of `fn`: a call, or the continuation at a frame point."""

    fn: types.FunctionType
    #: Names of the frame's values, in order.
    parameters: tuple[str, ...]
    #: None for a call.
    point: FramePoint | None
    name: str
    #: Unique among the entries of the frame's dispatcher.
    number: int
    #: `run_eagerly(values)` runs the frame without compiled code.
    run_eagerly: BoxedCallable
    profile: FrameProfile = field(default_factory=FrameProfile)
    #: The saved-tensor hooks (pack, unpack) in force, if graphs inline them.
    hooks: tuple[Any, Any] | None = None

    def request(self, values: Sequence[Any], options: CompileOptions) -> FrameRequest:
        """Builds the request to the tracer, with the real values of the frame."""
        code = self.fn.__code__
        if self.point is None:
            arguments = dict(zip(self.parameters, values))
            stolen = stolen_arguments(self.fn, options.steal, arguments) if options.steal else ()
            return FrameRequest(
                code,
                self.fn.__globals__,
                arguments,
                dict(zip(code.co_freevars, self.fn.__closure__ or ())),
                steal={argument_source: value for _, argument_source, value in stolen},
                fullgraph=options.fullgraph,
                name=self.name,
                profile=self.profile,
                early_reads=self.profile.early_reads,
            )
        point = self.point
        remaining = iter(zip(self.parameters, values))
        cells = {name: next(remaining) for name in point.cells}
        stack = tuple(None if kind == NULL else StackSlot(*next(remaining)) for kind in point.stack)
        slots = {name: next(remaining) for name in point.locals}
        still_donated = (options.steal & slots.keys()) - written_slots(code)
        return FrameRequest(
            code,
            self.fn.__globals__,
            {name: value for name, (_, value) in slots.items()},
            {name: cell for name, (_, cell) in cells.items()},
            parameters={name: parameter for name, (parameter, _) in (cells | slots).items()},
            index=point.index,
            stack=stack,
            steal={Local(slots[name][0]): slots[name][1] for name in sorted(still_donated)},
            fullgraph=options.fullgraph,
            name=self.name,
            profile=self.profile,
            early_reads=self.profile.early_reads,
            opens_loops=self.number < MOST_OPENED_LOOPS,
        )


@record(frozen=True)
class Conversion:
    """The result of converting one frame."""

    name: str
    #: None if the frame runs eagerly from now on.
    entry: Entry | None
    graph: torch.fx.GraphModule | None = None
    graph_break: Diagnostic | None = None
    #: The estimated cost of the piece, and the frame points after it.
    piece: Piece = NOTHING
    #: The reason why there is no entry.
    fallback: Diagnostic | None = None


def convert_frame(frame: FrameToConvert, values: Sequence[Any], owner: FrameOwner) -> Conversion:
    """Captures the frame, compiles the graph and prints the residual program.

    Raises Unsupported if the frame must be cut under fullgraph, BackendError if the backend fails and on_error is
    "raise". If the frame cannot be captured, the result has no entry, after one notice.
    """
    # The user's hooks apply to tensors that the program saves, not to tensors saved during tracing.
    hooked = compat.has_saved_tensor_hooks()
    frame = replace(frame, hooks=hooks_in_force())
    without = saved_tensors_hooks(_unchanged, _unchanged) if hooked else contextlib.nullcontext()
    with inlining(frame.hooks), without:
        try:
            return _convert(frame, values, owner)
        except _NeedsConstants as needed:
            notice(_static_sizes_notice(frame.name, needed.__cause__ or needed))
            fixed = replace(frame.profile, dynamic=False)
            return _convert(replace(frame, profile=fixed), values, owner, last=True)


def is_replaced(fn: types.FunctionType) -> bool:
    """Returns whether a trace rule replaces calls of `fn`, a function that a decorator has made."""
    return rule_for(fn).takes_itself


class _NeedsConstants(Exception):
    """A stage cannot work with symbols, but may work with the sizes and numbers of this call."""


def _static_sizes_notice(name: str, error: BaseException) -> Diagnostic:
    return Diagnostic(
        "MD310",
        f"{name} is compiled for one size at a time: a stage cannot work with sizes that vary",
        why="Each size is compiled once, up to recompile_limit. The stage raised:",
        fix="Choose another backend=, or say so with dynamic=False.",
        where=error.diagnostic.where if isinstance(error, MinidynamoError) else None,
        quoted=_whole_text(error),
    )


def _whole_text(error: BaseException) -> str:
    """Returns the text of an error; of a backend's error, if the backend raised it."""
    if isinstance(error, MinidynamoError) and error.__cause__ is None:
        return f"{error.code} {error.diagnostic.what}\n{error.diagnostic.why}".strip()
    source = error.__cause__ if isinstance(error, MinidynamoError) else error
    return f"{type(source).__name__}: {str(source).strip()}"


def _unchanged(value: Any) -> Any:
    return value


def _convert(frame: FrameToConvert, values: Sequence[Any], owner: FrameOwner, *, last: bool = False) -> Conversion:
    """Converts the frame in one attempt. Unless this is the `last` attempt, it raises _NeedsConstants if an attempt
    without symbols may succeed."""
    options = owner.options
    key = options.backend.key()
    load_once(load_fake_tensors)
    try:
        with phase("capture"):
            traced = trace_frame(frame.request(values, options))
            if frame.profile.dynamic is None and frame.profile.merge_sizes(traced.written_sizes):
                return _convert(frame, values, owner, last=last)
            if traced.shapes is not None:
                frame.profile.trip_counts.note(traced.shapes.unrolled)
            if traced.graph is not None:
                artifacts.write("graph", frame.name, graph_text(traced.graph))
    except SkipFrame as skip:
        return _fall_back(frame, skip.diagnostic, options)
    except GraphBreak as cut:
        raise Unsupported(_fullgraph_broken(cut.diagnostic)) from None
    except (ComptimeError, ArgumentError, Unsupported, DeclaredSizeFixed):
        raise
    except Exception as error:
        if frame.profile.has_varied() and not last:
            raise _NeedsConstants from error
        return _fall_back(frame, _internal(frame, error), options, error)
    is_symbolic = traced.shapes is not None and traced.shapes.is_symbolic and not last
    if compat.is_rank() and traced.graph is not None and frame.number == 0:
        check_ranks(traced.graph, f"{frame.name} {frame.point.index if frame.point else 0}")
    try:
        run = None
        if traced.graph is not None:
            run = options.backend.run(
                traced.graph, [graph_input.node.meta["example_value"] for graph_input in traced.inputs]
            )
            if not options.fullgraph and newly_constant(traced, frame.profile.trip_counts):
                return _convert(frame, values, owner, last=last)  # now cut before the code that needs the constant
    except BackendError as error:
        error.locate(_first_line(frame, traced))
        if is_symbolic:
            raise _NeedsConstants from error
        if options.on_error == "raise":
            raise
        return _fall_back(frame, error.diagnostic, replace(options, fullgraph=False))
    try:
        with phase("residual"):
            return _conversion(frame, traced, run, owner, key)
    except DeclaredSizeFixed:
        raise
    except Exception as error:
        if is_symbolic:
            raise _NeedsConstants from error
        return _fall_back(frame, _internal(frame, error), options, error)
    finally:
        traced.side_effects.forget()


def _conversion(
    frame: FrameToConvert, traced: TracedFrame, run: BoxedCallable | None, owner: FrameOwner, key: BackendKey
) -> Conversion:
    """Prints the residual program, and builds the entry and the estimate of the piece."""
    cut = traced.exit if isinstance(traced.exit, Break) else None
    point = None if cut is None else _point_of(frame.fn.__code__, cut)
    if cut is not None:
        publish("graph_break", frame.name, diagnostic=cut.diagnostic)
    if cut is not None and point is not None and frame.profile.dynamic is None:
        _expect_profiles(frame, traced, cut, point, owner)
    context = ResidualContext(
        root=frame.point is None,
        point=point,
        run_steps=run_steps,
        caller_runs_steps=True,
        rerun=_rerun_options(frame.fn.__code__, traced, owner.options),
    )
    report = functools.partial(
        _graph_failed, frame.name, is_own(key.backend), _first_line(frame, traced), frame.profile.finite
    )
    graph_break = None if cut is None else cut.diagnostic
    origin = Origin(context, frame.fn.__globals__, report, traced.graph, graph_break)
    origin = origin.owned_by(owner, frame.run_eagerly)
    residual = print_residual(traced, frame.parameters, run, origin.context)
    with phase("guards"):
        guards = traced.all_guards()
        frame.profile.trip_counts.note(constants(traced, guards))
        entry = make_entry(
            [*guards, *_guards_of_graph(traced.graph, frame.hooks)],
            frame.parameters,
            residual.body,
            name=frame.name,
            number=frame.number,
            backend_key=key,
            is_general=traced.shapes is not None and traced.shapes.is_symbolic,
            inputs=residual.inputs,
            steps=residual.steps,
            origin=origin,
            lock=traced.lock,
        )
    following = frozenset(frame_exit.point for frame_exit in exits(point)) if point is not None else frozenset()
    calls_compiled = cut is not None and cut.compiled_callee is not None
    piece = piece_of(
        traced.graph,
        following,
        calls_compiled,
        draws=bool(traced.side_effects.draws),
        inlines=any(isinstance(guard.expected, types.CodeType) for guard in guards),
    )
    return Conversion(frame.name, entry, traced.graph, graph_break, piece)


def _expect_profiles(
    frame: FrameToConvert, traced: TracedFrame, cut: Break, point: FramePoint, owner: FrameOwner
) -> None:
    """Passes on which sizes and numbers will vary in the frames after a break, and in the function called there."""
    for frame_exit in exits(point):
        owner.expect_profile(frame_exit.point, predicted(traced, cut, frame_exit.point, frame.profile))
    called = predicted_of_callee(traced, cut, frame.fn.__code__, frame.profile)
    if called is not None:
        owner.expect_call_profile(*called)


def _rerun_options(code: types.CodeType, traced: TracedFrame, options: CompileOptions) -> RerunOptions:
    """Returns how the frame reruns eagerly if the graph raises. A handler of the program may catch the error."""
    handles = traced.emits_in_try or any(instruction.handler for instruction in decode(code))
    return RerunOptions(
        even_without_effects=options.on_error == "eager" or handles,
        may_handle=traced.emits_in_try or traced.user_may_catch,
        kept=frozenset(code.co_varnames) - written_slots(code),
        starred=starred_parameters(code),
    )


_SAVED_TENSOR_HOOKS = Result(Constant(hooks_in_force, "saved_tensors_hooks"))
_FOUND_WRONG = Result(Constant(count_wrong_operators, "count_wrong_operators"))


def _guards_of_graph(graph: torch.fx.GraphModule | None, hooks: Sequence[Any] | None) -> list[Guard]:
    """Builds the guards that depend on the graph: on the identity of the pack and unpack hooks (None: on the absence of
    inlineable hooks), and that no further fake implementation was found wrong about the results of its operator.
    """
    guards = []
    if _saves_tensors(graph) and hooks is None:
        guards.append(Guard(_SAVED_TENSOR_HOOKS, GuardKind.IDENTITY, None))
    elif _saves_tensors(graph) and hooks is not None:
        guards += [Guard(Item(_SAVED_TENSOR_HOOKS, k), GuardKind.IDENTITY, hook) for k, hook in enumerate(hooks)]
    if calls_operators_of_users(graph):
        guards.append(Guard(_FOUND_WRONG, GuardKind.EQUALS, count_wrong_operators()))
    return guards


def _saves_tensors(graph: torch.fx.GraphModule | None) -> bool:
    """Returns whether autograd saves tensors of the graph, so that the user's hooks matter."""
    values = () if graph is None else (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _point_of(code: types.CodeType, cut: Break) -> FramePoint:
    stack = [NULL if isinstance(v, Null) else CELL if isinstance(v, CellVariable) else VALUE for v in cut.stack]
    return frame_point(code, cut.index, stack, cut.local_variables, cut.cells, cut.lasting)


def _fall_back(
    frame: FrameToConvert, diagnostic: Diagnostic, options: CompileOptions, cause: Exception | None = None
) -> Conversion:
    """Returns a conversion without entry, after a notice; under fullgraph, raises an error."""
    if options.fullgraph and cause is not None and diagnostic.code == "MD299":
        raise InternalError(diagnostic) from cause
    if options.fullgraph:
        raise Unsupported(_fullgraph_broken(diagnostic))
    notice(diagnostic)
    publish("fallback", frame.name, diagnostic=diagnostic)
    return Conversion(frame.name, None, fallback=diagnostic)


def _first_line(frame: FrameToConvert, traced: TracedFrame) -> UserLocation:
    """Returns the line of the graph's first operation, or else the line of the frame's function."""
    known = None if traced.graph is None else first_location(traced.graph)
    return known or UserLocation.of(frame.fn.__code__)


def _graph_failed(
    name: str,
    is_own_backend: bool,
    where: UserLocation,
    finite: Finiteness,
    count: Callable[[Diagnostic], int],
    failure: Failure,
) -> None:
    """Reports a graph that failed although the program does not: to subscribers, and at first to the user. Only records
    a number that is not `finite`: the entry fits no further call, unless no other entry may be compiled."""
    if failure.is_not_finite:
        finite.all_numbers_were_finite = finite.is_frozen or config.stance != "default"
        return
    if failure.kind is ResultDiffers:  # a notice was shown already
        return
    lines = [f"Raised while computing {line}" for line in failure.lines[:1]]
    diagnostic = Diagnostic(
        "MD523",
        f"the compiled graph of {name} failed, and the call ran again eagerly",
        why="\n".join([failure.text, *lines, "The same program without the graph raises no such error."]),
        fix=f"{_REPORT if is_own_backend else 'Repair the backend'}, or leave the function out: @minidynamo.disable.",
        where=where,
    )
    times = count(diagnostic)
    publish("fallback", name, diagnostic=diagnostic)
    if times <= _MOST_FAILURE_NOTICES:
        repeated = f", for time {times}" if times > 1 else ""
        notice(replace(diagnostic, what=f"{diagnostic.what}{repeated}"), noticed=set())


_REPORT = "This is a bug of minidynamo: please report it. Until then choose another backend="
_MOST_FAILURE_NOTICES = 3
"""Number of notices about failing graphs of one compiled function."""


def _fullgraph_broken(diagnostic: Diagnostic) -> Diagnostic:
    what = diagnostic.what.removeprefix("graph break: ")
    fix = diagnostic.fix.replace(", or accept the break.", ".")
    why = "\n".join(line for line in diagnostic.why.splitlines() if not line.startswith("The graph ends here"))
    return replace(diagnostic, what=f"fullgraph=True, but here the graph ends: {what}", why=why, fix=fix)


def _internal(frame: FrameToConvert, error: Exception) -> Diagnostic:
    """Describes a bug of minidynamo; the traceback goes to a file. Python's recursion limit is no bug."""
    if isinstance(error, RecursionError):
        return Diagnostic(
            "MD210",
            f"{frame.name} runs eagerly: its calls or its data nest too deep to be captured",
            why=f"Capture met Python's recursion limit of {sys.getrecursionlimit() - STACK_FRAMES} frames.",
            fix="Call it from fewer functions, flatten the data, or raise the limit with sys.setrecursionlimit().",
        )
    path = artifacts.write("bug", frame.name, "".join(traceback.format_exception(error)), ".txt")
    return Diagnostic(
        "MD299",
        f"{frame.name} runs eagerly: minidynamo failed while capturing it",
        why=summary(error),
        fix=f"This is a bug in minidynamo. Please report it with {path}.",
    )
