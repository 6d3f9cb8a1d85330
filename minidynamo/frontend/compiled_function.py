"""Owns one compiled function: its dispatchers, counters, and the compiled functions called at graph breaks.

It neither captures nor prints code: `convert_frame.py` converts frames, dispatchers keep entries, `explain.py` answers
users' questions. The record never holds the function that the user holds: everything dies with that function, without a
garbage collector.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch

from minidynamo.bytecode.analysis import first_index, starred_parameters
from minidynamo.bytecode.breaks import make_loop
from minidynamo.bytecode.instructions import location
from minidynamo.bytecode.layout import FramePoint, frame_point
from minidynamo.compat import NOT_FOR_TORCH_COMPILE, is_sharded, module_call, module_in_data_parallel
from minidynamo.config import config
from minidynamo.core.artifacts import Artifact, collected, own_frames_hidden
from minidynamo.core.compile_scope import is_stack_deep, with_room
from minidynamo.core.directives import COMPILED, DISABLED, own_mark
from minidynamo.core.events import Event, notice, on_event, publish
from minidynamo.core.names import weakly
from minidynamo.core.stats import Stats
from minidynamo.errors import ArgumentError, Diagnostic, RecompileLimit, UserLocation, an
from minidynamo.frontend import convert_frame, sharing
from minidynamo.frontend.data_parallel import call_wrapper
from minidynamo.frontend.dispatcher import Dispatcher, Native
from minidynamo.frontend.donation import stolen_arguments
from minidynamo.frontend.frames import ResumeFrame, RootFrame, closure_factory
from minidynamo.frontend.pieces import NOTHING, Piece, is_small_loop, left_to_python
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.options import CompileOptions
from minidynamo.guards import stored_profile
from minidynamo.guards.cache import Entry, in_order
from minidynamo.guards.profile import NEEDS_CONSTANT, FrameProfile, TripCounts
from minidynamo.guards.recompiles import Recompile, is_for_another_module, limit_reached

T = TypeVar("T")

# New closures over one code object are new functions: further ones run eagerly.
_MOST_CALLEES_PER_CODE = 8

# Modules of several classes may share a method. Its versions are limited to this multiple of recompile_limit.
_MOST_MODULE_CLASSES = 8

_SMALL_LOOP = "Its body has few tensor operations, or none. The code after the loop stays compiled."
_SMALL = "Between graph breaks there are few tensor operations, on small tensors."
_WITHOUT_BREAKS = "Remove the graph breaks to compile it; breaks() of the function lists them."

# In the order of their creation.
all_compiled: weakref.WeakValueDictionary[int, CompiledFunction] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def compile_function(
    fn: types.FunctionType,
    options: CompileOptions,
    *,
    caller: CompiledFunction | None = None,
    module: torch.nn.Module | None = None,
    wrapper: torch.nn.Module | None = None,
    bound: bool = False,
    shares: bool = True,
) -> types.FunctionType:
    """Returns a plain function with the signature of `fn` that runs compiled code.

    `caller` is the compiled function that calls `fn` at a graph break; both then share counters and graphs. `module` is
    the module if `fn` is its call, and `wrapper` the module that users call: the same, or a `DistributedDataParallel`
    around it. `bound`: the function does not take the module. `shares`: equal callables may use each other's entries.
    """
    record = CompiledFunction(fn, options, caller, module=module, wrapper=wrapper, shares=shares)
    # A bound method would tie module and code into a cycle that only the garbage collector could free.
    owner = weakref.ref(module) if bound and module is not None else None
    dispatcher = Dispatcher(
        RootFrame(fn, record.name, owner),
        record.convert,
        shared_entry=record.shared_entry,
        diversion=record.diversion if bound else lambda values: None,
        on_end=functools.partial(record.ended, None),
        stats=record.stats,
        backend_key=options.backend.key,
        waits=options.while_compiling == "wait",
        counts_calls=caller is None,
        varies=options.dynamic is not False,
    )
    record.root = weakref.ref(dispatcher)
    function = cast(types.FunctionType, dispatcher.function)
    function.__dict__.update({COMPILED: record} | NOT_FOR_TORCH_COMPILE)
    return function


def eager_function(
    fn: types.FunctionType,
    options: CompileOptions,
    *,
    module: torch.nn.Module | None = None,
    wrapper: torch.nn.Module | None = None,
    **_: Any,
) -> types.FunctionType:
    """Returns a function that calls `fn`, and answers questions as a compiled function does: nothing is compiled."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except own_frames_hidden():
            raise

    record = CompiledFunction(fn, options, None, module=module, wrapper=wrapper)
    call.__dict__.update({COMPILED: record} | NOT_FOR_TORCH_COMPILE)
    return cast(types.FunctionType, call)


def name_of_point(point: FramePoint | None) -> str:
    """Returns a frame point in the form used in profiles."""
    return "0" if point is None else f"{point.index}({', '.join(point.parameters)})"


def is_current(function: types.FunctionType) -> bool:
    """Returns whether the original of a compiled function still has the code and defaults that were compiled."""
    record: CompiledFunction = vars(function)[COMPILED]
    root = record.root()
    return root is not None and root.is_current()


def _is_closure(fn: types.FunctionType) -> bool:
    """Returns whether calls of an outer function may create `fn` anew; its cells must then die with the closure."""
    code = fn.__code__
    return bool(code.co_flags & inspect.CO_NESTED or set(code.co_freevars) - {"__class__"})


def _runs_at_once(fn: types.FunctionType) -> bool:
    """Returns whether a call of the function is one uninterrupted frame, from start to end."""
    suspends = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not fn.__code__.co_flags & suspends


def _parameters(code: types.CodeType) -> set[str]:
    return {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *starred_parameters(code)}


def _weak(value: T | None) -> Callable[[], T | None]:
    """Returns a weak reference to a value; for None, a function that returns None."""
    return (lambda: None) if value is None else weakref.ref(value)


_PYTHON_CALLABLES = types.FunctionType | torch.nn.Module


class CompiledFunction:
    """The record of a compiled function. `stats` and `graphs` include those of resume points and callees."""

    def __init__(
        self,
        fn: types.FunctionType,
        options: CompileOptions,
        caller: CompiledFunction | None,
        *,
        module: torch.nn.Module | None = None,
        wrapper: torch.nn.Module | None = None,
        shares: bool = True,
    ) -> None:
        self.shares: bool = caller.shares if caller else shares and not options.disable
        self.py_func = fn
        self.options = options
        self.name = options.name or fn.__qualname__
        self.stats: Stats = caller.stats if caller else Stats()
        self.graphs: list[torch.fx.GraphModule] = caller.graphs if caller else []
        self.breaks: list[Diagnostic] = caller.breaks if caller else []
        self.fallbacks: list[Diagnostic] = caller.fallbacks if caller else []
        self.recompiles: list[Recompile] = caller.recompiles if caller else []
        self.root: Callable[[], Dispatcher | None] = lambda: None
        self._resumed: dict[FramePoint, Dispatcher] = {}
        self._callees: dict[types.FunctionType, types.FunctionType] = {}
        self._closure_records: dict[types.CodeType, CompiledFunction] = {}
        self._closure_factories: dict[types.CodeType, Callable[..., types.FunctionType]] = {}
        self.module: Callable[[], torch.nn.Module | None] = _weak(module)
        self.wrapper: Callable[[], torch.nn.Module | None] = _weak(wrapper)
        self._own_forward: types.FunctionType | None = None
        self._caller: Callable[[], CompiledFunction | None] = _weak(caller)
        # Per frame point (None: the root): the profile, the profile predicted at a break, the artifacts of each entry.
        self.profiles: dict[FramePoint | None, FrameProfile] = {}
        self._expected: dict[FramePoint | None, FrameProfile] = {}
        self._expected_calls: dict[types.CodeType, FrameProfile] = {}
        self.trip_counts: TripCounts = caller.trip_counts if caller else TripCounts()
        self._texts: dict[FramePoint | None, list[list[Artifact]]] = {}
        self._pieces: dict[FramePoint | None, Piece] = {}
        all_compiled[next(_numbers)] = self

    # The `FrameOwner` protocol

    def resume_at(self, point: FramePoint) -> BoxedCallable:
        """Returns the boxed function that continues at `point`: one per point, for reuse by loops."""
        if point not in self._resumed:
            convert = functools.partial(weakly(self.convert), point=point)
            self._resumed[point] = Dispatcher(
                ResumeFrame(point, self.py_func.__globals__),
                convert,
                shared_entry=functools.partial(weakly(self.shared_entry), point=point),
                on_end=functools.partial(weakly(self.ended), point),
                stats=self.stats,
                backend_key=self.options.backend.key,
                waits=self.options.while_compiling == "wait",
                counts_calls=False,
                varies=self.options.dynamic is not False,
            )
        return self._resumed[point].step()

    def compiled_callee(self, target: Any) -> Any:
        """Returns the compiled form of `target` to call at a graph break, or `target` itself if it cannot be compiled.

        On a deep stack it returns `target` with room for minidynamo's frames: a recursion that works in eager must not
        fail here.
        """
        if is_stack_deep() and isinstance(target, types.MethodType):
            # A function that calls a function takes no C stack; Python 3.12 limits the C stack too.
            return types.MethodType(self.compiled_callee(target.__func__), target.__self__)
        if is_stack_deep():
            return with_room(target) if isinstance(target, _PYTHON_CALLABLES) else target
        if isinstance(target, types.MethodType):
            if self.options.steal and target.__self__ is self.module() and target.__name__ == "forward":
                return types.MethodType(self.own_forward(target.__func__), target.__self__)
            return types.MethodType(self.compiled_callee(target.__func__), target.__self__)
        if type(target) is functools.partial:
            return functools.partial(self.compiled_callee(target.func), *target.args, **target.keywords)
        if (wrapped := module_in_data_parallel(target)) is not None:
            inner = vars(wrapped).get("_compiled_call_impl")
            function = (
                self.compiled_callee(module_call(type(wrapped))) if inner is None else lambda _, *a, **k: inner(*a, **k)
            )
            return lambda *args, **kwargs: call_wrapper(target, function, args, kwargs)
        if isinstance(target, torch.nn.Module):
            call = type(target).__call__
            call = module_call(type(target)) if call is torch.nn.Module.__call__ else call
            return types.MethodType(self.compiled_callee(call), target)
        if not isinstance(target, types.FunctionType) or DISABLED in vars(target) or own_mark(target, COMPILED):
            return target
        # A function that calls itself is compiled once, not once per level.
        return (self._caller() or self)._callee(target)

    def _callee(self, target: types.FunctionType) -> types.FunctionType:
        known = self._callees.get(target)
        if known is not None and is_current(known):
            return known
        if not all(name.isidentifier() for name in target.__code__.co_varnames):
            return target  # a comprehension of Python 3.11: its argument has no name that source text can spell
        if _is_closure(target):
            return self._closure(target) if _runs_at_once(target) else target
        if sum(other.__code__ is target.__code__ for other in self._callees) >= _MOST_CALLEES_PER_CODE:
            return target
        self._callees[target] = compile_function(target, self.options.for_callee(), caller=self)
        return self._callees[target]

    def _closure(self, target: types.FunctionType) -> types.FunctionType:
        """Returns a function with the signature of `target` that passes cells as arguments: one record serves all
        closures over a code object.
        """
        code = target.__code__
        if code not in self._closure_factories:
            empty = tuple(types.CellType() for _ in code.co_freevars)
            template = types.FunctionType(code, target.__globals__, code.co_name, closure=empty)
            record = self._closure_records[code] = CompiledFunction(template, self.options.for_callee(), self)
            cells = {*code.co_freevars, *code.co_cellvars}
            point = frame_point(code, first_index(code), (), _parameters(code) - cells, cells)
            self._closure_factories[code] = closure_factory(
                RootFrame(template, record.name), point, record.resume_at(point)
            )
        call = self._closure_factories[code](*target.__closure__ or ())
        call.__defaults__, call.__kwdefaults__ = target.__defaults__, target.__kwdefaults__
        functools.update_wrapper(call, target)
        return call

    def own_forward(self, forward: Any) -> Any:
        """Compiles the `forward` of the compiled module itself, with the options of the module: donated arguments of
        the module arrive there, and hooks of sharded modules run around it.
        """
        if not isinstance(forward, types.FunctionType) or DISABLED in vars(forward) or own_mark(forward, COMPILED):
            return forward
        known = self._own_forward
        if known is None or vars(known)[COMPILED].py_func is not forward or not is_current(known):
            known = self._own_forward = compile_function(forward, replace(self.options, name=None), caller=self)
        return known

    def diversion(self, values: list[Any]) -> Callable[..., Any] | None:
        """Returns the call of a module that `fully_shard` has sharded: its hooks run eagerly around the compiled
        `forward`, because they communicate and exchange parameters. Returns None for other modules.
        """
        module: Any = self.module()
        if not is_sharded(module) or "forward" in vars(module):
            return None

        def call_between_hooks(_: object, *args: Any, **kwargs: Any) -> Any:
            forward = self.own_forward(type(module).forward)
            module.__dict__["forward"] = types.MethodType(forward, module)  # for the duration of this call
            try:
                return module_call(type(module))(module, *args, **kwargs)
            finally:
                del module.__dict__["forward"]

        return call_between_hooks

    def graph_failed(self, diagnostic: Diagnostic) -> int:
        """Counts a graph that failed although the program does not fail; returns the number so far."""
        self.stats.graph_failures += 1
        if diagnostic not in self.fallbacks:
            self.fallbacks.append(diagnostic)
        return self.stats.graph_failures

    def expect_profile(self, point: FramePoint, profile: FrameProfile) -> None:
        """Adds the predicted profile of the values with which a frame will continue at `point`."""
        self._expected.setdefault(point, FrameProfile()).add(profile)

    def expect_call_profile(self, code: types.CodeType, profile: FrameProfile) -> None:
        """Adds the predicted profile of the arguments of a call, at a break, of a function with this code."""
        (self._caller() or self)._expected_calls.setdefault(code, FrameProfile()).add(profile)

    # Misses

    def convert(self, dispatcher: Dispatcher, values: list[Any], point: FramePoint | None = None) -> Entry | Native:
        """Compiles a call of the function, or of the frame that is entered at `point` after a graph break."""
        if point is None and self.options.steal:
            self._check_stolen(dict(zip(dispatcher.parameters, values)))
        missed = [dispatcher.explained(dispatcher.misfits)] if dispatcher.misfits else []
        key = self.options.backend.key()
        own_entries = [n for n, entry in enumerate(dispatcher.entries) if entry.backend_key == key]
        same_module_entries = [n for n in own_entries if not is_for_another_module(dispatcher.misfits[n])]
        limit = self.options.recompile_limit
        if len(same_module_entries) >= limit or len(own_entries) >= limit * _MOST_MODULE_CLASSES:
            self._stop_compiling(dispatcher, len(own_entries), missed)
            return Native(permanent=False)
        self.recompiles += missed
        siblings = list(self._equal_dispatchers(point))
        dispatcher.next_number = max(dispatcher.next_number, *(d.next_number for _, d in siblings), 0)
        profile = self._profile(point)
        profile.add_numbers(record.profiles[point] for record, _ in siblings if point in record.profiles)
        profile.items.add_computed(dict(zip(dispatcher.parameters, values)))
        for failures in dispatcher.misfits:
            profile.items.learn(failures)
        publish("compile_start", dispatcher.name)
        try:
            with self._timed(), collected() as texts:
                frame = convert_frame.FrameToConvert(
                    self.py_func,
                    dispatcher.parameters,
                    point,
                    dispatcher.name,
                    dispatcher.next_number,
                    weakly(dispatcher.run_eagerly),
                    profile,
                )
                conversion = convert_frame.convert_frame(frame, values, self)
        finally:
            publish("compile_end", dispatcher.name)
        if config.profile:
            stored_profile.remember(self.py_func, name_of_point(point), frame.profile)
        if conversion.entry is not None:
            self._texts.setdefault(point, []).append(texts)
            conversion.entry.origin = replace(conversion.entry.origin, texts=texts)
        outcome = self._record(conversion)
        return Native(permanent=True) if self._add_piece(point, conversion) else outcome

    # Entries of equal callables

    def equal_records(self) -> Iterator[CompiledFunction]:
        """Yields the records of the other callables with the same code, globals, options and class of module."""
        if not self.shares:
            return
        fn, kind, options = self.py_func, type(self.module()), replace(self.options, name=None)
        for reference in all_compiled.valuerefs():  # the list is made at once: other threads add records
            record = reference()
            if record is None or record is self or not record.shares or record.py_func.__code__ is not fn.__code__:
                continue
            same = record.py_func.__globals__ is fn.__globals__ and type(record.module()) is kind
            if same and replace(record.options, name=None) == options:
                yield record

    def _equal_dispatchers(self, point: FramePoint | None) -> Iterator[tuple[CompiledFunction, Dispatcher]]:
        """Yields the dispatchers of equal callables at a frame point, with their records."""
        for record in self.equal_records():
            dispatcher = record.root() if point is None else record._resumed.get(point)
            if dispatcher is not None and dispatcher.is_current():
                yield record, dispatcher

    def shared_entry(self, dispatcher: Dispatcher, values: list[Any], point: FramePoint | None = None) -> Entry | None:
        """Returns a copy of an entry of an equal callable that fits the values; None if there is none."""
        arguments, key = dict(zip(dispatcher.parameters, values)), self.options.backend.key()
        tried = {entry.origin.compile for entry in dispatcher.entries}
        for record, other in self._equal_dispatchers(point):
            cells = sharing.cells_of(record.py_func, self.py_func)
            if cells is None:
                continue
            for entry in in_order(other.entries):
                if entry.backend_key != key or entry.origin.compile in tried:
                    continue
                tried.add(entry.origin.compile)
                shared = entry.rebound(cells)
                if shared.fits(arguments):
                    entry.origin.shared(shared, self, weakly(dispatcher.run_eagerly), cells)
                    dispatcher.next_number = max(dispatcher.next_number, other.next_number)
                    self._report_shared(shared.origin, point, record)
                    return shared
        return None

    def sharers(self, entry: Entry, point: FramePoint | None) -> list[CompiledFunction]:
        """Returns the records of the equal callables that use a copy of an entry."""
        compiles = ((record, [e.origin.compile for e in d.entries]) for record, d in self._equal_dispatchers(point))
        return [record for record, known in compiles if entry.origin.compile in known]

    def _report_shared(self, origin: sharing.Origin, point: FramePoint | None, record: CompiledFunction) -> None:
        """Reports an entry of an equal callable. Values that have varied there count as varied here, and frames left to
        Python there are left to Python here.
        """
        self.stats.shared += 1
        self._texts.setdefault(point, []).append(origin.texts)
        self._report(origin.graph, origin.graph_break)
        if point in record.profiles:
            self._profile(point).add(record.profiles[point])
        for other, piece in record._pieces.items():
            self._pieces[other] = self._pieces.get(other, piece).merged(piece)
        self._leave_small_frames(point)

    def _profile(self, point: FramePoint | None) -> FrameProfile:
        """Returns the profile of a frame point, including that of earlier processes of the same job."""
        caller = self._caller()
        if point not in self.profiles:
            is_inner = point is not None or caller is not None
            self.profiles[point] = FrameProfile(self.options.dynamic, trip_counts=self.trip_counts, is_inner=is_inner)
            if config.profile:
                stored_profile.recall(self.py_func, name_of_point(point), self.profiles[point])
        if point in self._expected:
            self.profiles[point].add(self._expected.pop(point))
        if caller is not None and (point is None or point.index == first_index(point.code)):
            self.profiles[point].add(caller._expected_calls.pop(self.py_func.__code__, FrameProfile()))
        return self.profiles[point]

    def _check_stolen(self, arguments: dict[str, Any]) -> None:
        for name, _, value in stolen_arguments(self.py_func, self.options.steal, arguments):
            if value is not None and not isinstance(value, list):
                what = f"steal= names `{name}` of {self.name}, which is {an(type(value).__name__)}, not a list"
                why = "Only a list can be emptied by the callee."
                raise ArgumentError(Diagnostic("MD111", what, why=why, fix=f"Pass list({name})."))

    def _report(self, graph: torch.fx.GraphModule | None, graph_break: Diagnostic | None) -> None:
        """Enters the graph and the graph break of a version into the reports."""
        if graph is not None:
            self.stats.graphs += 1
            self.graphs.append(graph)
        if graph_break is not None:
            self.stats.graph_breaks += 1
            self.breaks.append(graph_break)

    def _record(self, conversion: convert_frame.Conversion) -> Entry | Native:
        self._report(conversion.graph, conversion.graph_break)
        if conversion.fallback is not None:
            self.fallbacks.append(conversion.fallback)
        if conversion.entry is None:
            self.stats.fallbacks += 1
            return Native(permanent=True)
        return conversion.entry

    def _add_piece(self, point: FramePoint | None, conversion: convert_frame.Conversion) -> bool:
        """Adds the piece of a new version; returns whether the frame at `point` is left to Python from now on."""
        cut, known = conversion.graph_break, self._pieces.get(point)
        # After a break at a trip count that varies, the versions for single trip counts are out of use.
        if known is None or (cut is not None and cut.code == NEEDS_CONSTANT):
            known = conversion.piece
        self._pieces[point] = known.merged(conversion.piece)
        return self._leave_small_frames(point)

    def ended(self, point: FramePoint | None) -> None:
        """Leaves to Python the frames that are not worth entering, now that the frame at `point` runs eagerly."""
        self._pieces[point] = NOTHING
        self._leave_small_frames(point)

    def _leave_small_frames(self, point: FramePoint | None) -> bool:
        """Leaves to Python the frames that are not worth entering; returns whether the frame at `point` is one.

        Backends that generate no kernels, such as a counter of graphs, get every graph; so do functions with
        `fullgraph`. Donated lists stay in use.
        """
        fuses = self.options.backend.fuses
        if self.options.steal or self.options.fullgraph:
            return False
        left = left_to_python(self._pieces) if fuses else []
        dispatchers = self.dispatchers()
        for other in left:
            if other in dispatchers and dispatchers[other].leave_to_python():
                where = UserLocation.of(self.py_func.__code__) if other is None else location(other.code, other.index)
                self._report_left(dispatchers[other].name, "its graphs are", _SMALL, where)
        return point in left or self._leave_loop(point, fuses=fuses)

    def _leave_loop(self, point: FramePoint | None, *, fuses: bool) -> bool:
        """Leaves the loop whose body starts at `point` to Python if it is small; returns whether it does."""
        if point not in self._resumed or point is None or not is_small_loop(point, self._pieces[point], fuses=fuses):
            return False
        loop, dispatcher = make_loop(point, self.py_func.__globals__, self.resume_at), self._resumed[point]
        if loop is None or not dispatcher.leave_to_python(loop):
            return False
        where = location(point.code, point.index - 1)
        self._report_left(f"the loop in {dispatcher.name}", "an iteration is", _SMALL_LOOP, where)
        return True

    def _report_left(self, name: str, what: str, why: str, where: UserLocation) -> None:
        """Enters a part of the function that Python runs from now on into the reports."""
        what = f"{name} runs eagerly: {what} smaller than the cost of entering it"
        self.fallbacks.append(Diagnostic("MD308", what, why, _WITHOUT_BREAKS, where=where))
        self.stats.fallbacks += 1
        publish("fallback", name, diagnostic=self.fallbacks[-1])

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds the seconds of each phase that this thread ends, and hits and misses of the cache, to the counters."""
        thread = threading.get_ident()
        seconds = self.stats.seconds_by_phase

        def add(event: Event) -> None:
            if threading.get_ident() != thread:
                return
            if event.kind == "phase_end":
                seconds[event.name] = seconds.get(event.name, 0.0) + event.data["seconds"]
            elif event.kind == "cache":
                self.stats.cache_hits += event.name == "hit"
                self.stats.cache_misses += event.name == "miss"

        stop = on_event(add)
        try:
            yield
        finally:
            stop()

    def _stop_compiling(self, dispatcher: Dispatcher, versions: int, missed: list[Recompile]) -> None:
        """Reports once which values kept changing; with limit_policy="raise" each further call raises the report."""
        known = [*(r for r in self.recompiles if r.name == dispatcher.name), *missed]
        raises = self.options.fullgraph or self.options.limit_policy == "raise"
        diagnostic = limit_reached(
            dispatcher.name, versions, self.options.recompile_limit, known, runs_eagerly=not raises
        )
        if raises:
            raise RecompileLimit(diagnostic)
        dispatcher.stop_compiling()
        self.fallbacks.append(diagnostic)
        notice(diagnostic)
        publish("fallback", dispatcher.name, diagnostic=diagnostic)

    # Queries of users

    def dispatchers(self) -> dict[FramePoint | None, Dispatcher]:
        """Returns the dispatcher of each frame point; None is the call, whose dispatcher is the function's."""
        by_point: dict[FramePoint | None, Dispatcher] = {}
        root = self.root()
        if root is not None:
            by_point[None] = root
        return by_point | dict(self._resumed.items())

    def texts(self, point: FramePoint | None) -> Sequence[Sequence[Artifact]]:
        """Returns the artifacts of each entry of a frame."""
        return self._texts.get(point, ())

    def called(self) -> list[CompiledFunction]:
        """Returns the records of the functions that were compiled at graph breaks."""
        functions = [*self._callees.values(), *filter(None, (self._own_forward,))]
        return [*(vars(function)[COMPILED] for function in functions), *self._closure_records.values()]

    def compile_again(self) -> tuple[Callable[..., Any], CompiledFunction]:
        """Compiles the same function, or the call of the same module, again with a separate record; returns both."""
        module, wrapper = self.module(), self.wrapper()
        make = eager_function if self.options.disable else compile_function
        function = make(self.py_func, self.options, module=module, wrapper=wrapper, shares=False)
        record: CompiledFunction = vars(function)[COMPILED]
        if wrapper is None or wrapper is module:
            return (function if module is None else functools.partial(function, module)), record
        return (lambda *args, **kwargs: call_wrapper(wrapper, function, args, kwargs)), record

    def freeze(self, check_every: int = 1000) -> types.FunctionType:
        """Returns the compiled function without guards; every `check_every` calls all guards are checked.

        The first call is checked, too; with 0, no call is. A failed check raises FrozenCallDiffers. Between two checks
        a call that does not fit returns wrong results without an error. With several versions, each call checks only
        the guards that distinguish them. Frames after graph breaks keep their guards.

        Raises ArgumentError if there is no version of the function for the settings in force.
        """
        if type(check_every) is not int or check_every < 0:
            what = f"check_every= must be a number of calls, or 0 for never, not {check_every!r}"
            raise ArgumentError(Diagnostic("MD306", what, fix="Leave it out: every thousandth call is checked."))
        root = self.root()
        if root is None or not root.in_use():
            what = f"freeze() needs a compiled version of {self.name}, and there is none"
            raise ArgumentError(Diagnostic("MD306", what, fix="Call it before freezing it."))
        for profile in self.profiles.values():
            profile.finite.is_frozen = True
        return root.frozen(check_every)

    def reset(self) -> None:
        """Forgets all entries; the next call compiles again, or shares a version. The counters start at zero."""
        for dispatcher in self.dispatchers().values():
            dispatcher.reset()
        for record in self.called():
            record.reset()
        self.stats.reset()
        reports = (self.graphs, self.breaks, self.fallbacks, self.recompiles)
        for table in (
            *reports,
            self._texts,
            self._pieces,
            self.profiles,
            self._expected,
            self._expected_calls,
            self.trip_counts,
        ):
            table.clear()
