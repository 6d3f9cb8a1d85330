"""Owns the dispatcher of a frame: its entries, the generated function that chooses among them, and the miss path.

It does not capture or compile (it asks the callable that it was made with), writes no guards, and leaves the text of
the function to `dispatcher_text.py`. Every layer takes one list and empties it, so that an argument which the caller
has given up dies at its last use. A new entry means a new source, whose code replaces the function's. Other threads may
be in the old code: a body that it names stays callable, and guards that are gone raise NameError, which means that they
do not hold.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from minidynamo import compat
from minidynamo.bytecode.breaks import BoxedStep, drive
from minidynamo.bytecode.layout import FramePoint
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.compile_scope import isolated
from minidynamo.core.events import notice, publish
from minidynamo.core.locks import ForkSafeLock
from minidynamo.core.names import weakly
from minidynamo.core.stats import Stats
from minidynamo.errors import Diagnostic, MinidynamoError, RecompileRefused
from minidynamo.frontend.dispatcher_text import dispatch_source, frozen_function, native_source, timed_function
from minidynamo.frontend.frames import Frame, ResumeFrame, RootFrame
from minidynamo.graph.boxed import BoxedCallable, mark_boxed
from minidynamo.guards.cache import Entry, in_order
from minidynamo.guards.recompiles import Misfits, explain, refusal
from minidynamo.guards.state import mode_in_charge

BackendKey = Callable[[], Hashable]

# One compile at a time in the whole process: capture switches state that all threads share, and two threads that
# compile frames which need each other must not wait for each other.
_compiling = ForkSafeLock(lambda: _repair_all())


@dataclass(frozen=True)
class Native:
    """Run the frame as the user wrote it: this time, or from now on."""

    for_good: bool


def root_dispatcher(
    fn: types.FunctionType,
    compile_entry: CompileEntry,
    *,
    name: str | None = None,
    stats: Stats | None = None,
    backend_key: BackendKey = lambda: None,
    waits: bool = True,
    counts_calls: bool = True,
) -> Dispatcher:
    """The dispatcher of calls of `fn`; its function has the signature, defaults, attributes and names of `fn`.

    `compile_entry(dispatcher, values)` is asked at each miss for an Entry or Native. `values` are the arguments in the
    order of `dispatcher.parameters`; it must leave the list as it is and not keep it. The caller gets what it raises.
    Only entries whose `backend_key` is what `backend_key()` gives are used; it is asked again when settings change.
    `waits`: calls that miss while another thread compiles wait for it; else they run as written. `counts_calls`: calls
    of `fn` are those that `stats` is about, not those of a function which that one calls at a break.
    The function keeps the dispatcher alive, not the other way round.
    """
    frame = RootFrame(fn, name or fn.__qualname__)
    return Dispatcher(
        frame, compile_entry, stats, backend_key, waits=waits, counts_calls=counts_calls, keeps_function=False
    )


def resume_dispatcher(
    point: FramePoint,
    namespace: dict[str, Any],
    compile_entry: CompileEntry,
    *,
    stats: Stats | None = None,
    backend_key: BackendKey = lambda: None,
    waits: bool = True,
) -> Dispatcher:
    """The dispatcher of a frame that is entered at `point`; its function takes the list that `FramePoint` describes.

    `namespace` is the globals of the user's function. Bodies return (next step, list) or (None, value). The dispatcher
    keeps the function alive, not the other way round.
    """
    frame = ResumeFrame(point, namespace)
    return Dispatcher(frame, compile_entry, stats, backend_key, waits=waits, counts_calls=False, keeps_function=True)


class Dispatcher:
    """The entries of one frame and the function that chooses among them."""

    def __init__(
        self,
        frame: Frame,
        compile_entry: CompileEntry,
        stats: Stats | None,
        backend_key: BackendKey,
        *,
        waits: bool,
        counts_calls: bool,
        keeps_function: bool,
    ) -> None:
        self.name = frame.name
        self.parameters = frame.parameters
        self.stats = Stats() if stats is None else stats
        self.entries: list[Entry] = []
        # While an entry is compiled: the guards of each older one that the call does not fulfil.
        self.misfits: Misfits = ()
        # For `make_entry`: unique among all entries that this dispatcher ever had.
        self.next_number = 0
        self._frame = frame
        self._compile_entry = compile_entry
        self._backend_key = backend_key
        self._waits = waits
        self._in_force = self._settings()
        self._count = self.stats.counter(of_calls=counts_calls)
        self._full: set[Hashable] = set()
        self._timed: Callable[..., int] | None = None
        self._generation = 0
        self._code: types.CodeType | None = None
        self._native_for_good = False
        self._busy = False
        self._body_names: dict[Entry, str] = {}
        self._body_numbers = itertools.count()
        self._keeps_function = keeps_function
        self._kept: types.FunctionType | None = None
        self._function: Callable[[], types.FunctionType | None] = lambda: None
        _live.add(self)

    @property
    def function(self) -> types.FunctionType:
        """The generated function: the one that is in use, or a new one when nobody holds it any more."""
        with _compiling:
            function = self._function()
            if function is None:
                namespace: dict[str, Any] = {"__name__": self._frame.module, "__builtins__": builtins}
                namespace |= self._own_names()
                self._body_names = {}
                function = types.FunctionType(self._generate(namespace), namespace)
                self._frame.finish(function)
                if isinstance(self._frame, RootFrame):
                    self._frame.mark_defaults(function)
                self._function = weakref.ref(function)
                self._kept = function if self._keeps_function else None
            return function

    def _own_names(self) -> dict[str, Any]:
        """What the generated function calls and compares, by the names that the frame has for it."""
        methods: dict[str, Callable[..., Any]] = {"miss": self.miss, "time_guards": self.time_guards}
        if self._keeps_function:
            methods = {name: weakly(method) for name, method in methods.items()}
        if isinstance(self._frame, RootFrame):
            methods["start_anew"] = functools.partial(self._start_anew, self._frame)
        names = self._frame.names
        called = {getattr(names, name): method for name, method in methods.items()}
        return called | {names.count: self._count} | self._frame.facts

    def is_current(self) -> bool:
        """Whether the frame that the entries are for is still the user's function."""
        return not isinstance(self._frame, RootFrame) or self._frame.is_current()

    def run_as_written(self, boxed: list[Any]) -> Any:
        """Run the frame from its list of values as the user wrote it."""
        return self._frame.native(boxed)

    def step(self) -> BoxedStep:
        """A function that calls `function` and holds it weakly, to be a constant of a break function.

        Code objects are invisible to the garbage collector, and the break functions of a loop lead back to the resume
        point that they belong to.
        """
        reference = weakref.ref(self.function)

        @artifacts.passed_over
        def resume(boxed: list[Any]) -> Any:
            return reference()(boxed)  # type: ignore[misc]

        return mark_boxed(resume)

    def source(self) -> str:
        """The text of the current generated function."""
        with _compiling:
            return "".join(linecache.getlines(self.function.__code__.co_filename))

    def in_use(self) -> list[Entry]:
        """The entries that calls look at, in the order in which they do."""
        return [entry for entry in in_order(self.entries) if entry.backend_key == self._in_force[0]]

    def frozen(self, check_every: int) -> types.FunctionType:
        """A function like `function` that looks at what tells its entries apart; every `check_every` calls at all."""
        return frozen_function(self._frame, self.in_use(), check_every, self._backend_key)

    # What changes the entries

    def install(self, entry: Entry) -> None:
        """Add an entry; calls that start from now on see it. Entries that can never fit again are dropped."""
        with _compiling:
            self.next_number += 1
            self.entries = [*(old for old in self.entries if old.alive()), entry]
            self._regenerate()
        publish("entry", self.name, entry=entry)

    def stop_compiling(self) -> None:
        """Make no more entries for the backend in force: calls that none fits run as written."""
        self._full.add(self._backend_key())

    def reset(self) -> None:
        """Forget all entries, and a decision to run natively for good."""
        with _compiling:
            self.entries = []
            self._full.clear()
            self._native_for_good = False
            self._regenerate()

    def abandon_compile(self) -> None:
        """Forget a compile that will never end, wherever it was."""
        self._busy, self.misfits = False, ()
        self._body_names = {}
        self._regenerate()

    def settings_changed(self) -> None:
        """Look at entries of the settings in force from now on; none when compiling is disabled."""
        with _compiling:
            if self._in_force != self._settings():
                self._regenerate()

    def _settings(self) -> tuple[Hashable, bool]:
        return self._backend_key(), config.disable or config.stance == "force_eager"

    # What the generated function calls

    def _start_anew(self, old: RootFrame, values: list[Any]) -> Any:
        """Serve a call that finds other code or other defaults in the user's function than `old` was made for."""
        args, kwargs = old.given(values)
        del values
        if old.is_current():  # but for a keyword that has no default any more: Python says so
            return old.fn(*args, **kwargs)
        with _compiling:
            if self._frame is old:
                self._replace_frame(RootFrame(old.fn, old.name))
        return self.function(*args, **kwargs)

    def _replace_frame(self, frame: RootFrame) -> None:
        self._frame = frame
        self.parameters = frame.parameters
        function = self._function()
        if function is not None:
            function.__globals__.update(self._own_names())
            frame.mark_defaults(function)
        self.reset()

    def time_guards(self, boxed: list[Any]) -> None:
        """Note how long it takes to find the entry that serves a call with these values.

        What is called so often that it comes here gets its checks as machine code.
        """
        if not _compiling.acquire(blocking=False):  # another thread compiles: no call waits for that
            return
        try:
            entries = self.in_use()
            for entry in entries:
                entry.written.make_native()
            self._timed = timed = self._timed or timed_function(self._frame, entries)
        finally:
            _compiling.release()
        self.stats.add_timed_call(timed(*boxed))

    def miss(self, boxed: list[Any], generation: int) -> BoxedCallable:
        """What takes the list of a call that no entry of `generation` fits; nothing else holds the arguments meanwhile.

        The generated function calls it itself, so that a traceback of what it raises does not lead through here.
        """
        try:
            return self._resolve(boxed, generation)
        except MinidynamoError as error:
            if config.verbose:
                raise
            raise error.with_traceback(None)  # noqa: B904 (the cause is kept; our frames say nothing to the user)

    def _resolve(self, boxed: list[Any], generation: int) -> BoxedCallable:
        """What takes the list instead: the body of a new entry, or the frame as the user wrote it."""
        if not _compiling.acquire(blocking=self._waits):
            self.stats.native_runs += 1
            return self._frame.native
        try:
            return self._resolve_alone(boxed, generation)
        finally:
            _compiling.release()

    def _resolve_alone(self, boxed: list[Any], generation: int) -> BoxedCallable:
        if generation != self._generation:
            return self._frame.bind(self.function)
        self.stats.misses += 1
        # Capturing a frame may run it, where a value is needed at once.
        as_written = self._busy or self._backend_key() in self._full or self._is_taken_over()
        as_written = as_written or config.stance == "eager_on_recompile"
        outcome = Native(for_good=False) if as_written else self._ask(boxed)
        if isinstance(outcome, Entry):
            self.install(outcome)
            return functools.partial(drive, outcome.body) if outcome.steps else outcome.body
        self.stats.native_runs += 1
        if outcome.for_good and self.entries:  # what was compiled for other ways through the frame still holds
            self.stop_compiling()
        elif outcome.for_good:
            self._native_for_good = True
            self._regenerate()
        return self._frame.native

    def _is_taken_over(self) -> bool:
        """Whether a mode is open that decides what operations mean; the user is told once."""
        mode = mode_in_charge()
        if mode:
            what = f"{self.name} runs as written while a {mode} is active"
            notice(Diagnostic("MD303", what, why="The mode decides what each operation means."))
        return bool(mode)

    def _ask(self, boxed: list[Any]) -> Entry | Native:
        arguments = dict(zip(self.parameters, boxed))
        key = self._backend_key()
        failures = self.misfits = tuple(tuple(entry.failures(arguments, key)) for entry in self.entries)
        del arguments
        if config.stance == "fail_on_recompile":
            raise RecompileRefused(refusal(self.name, failures))
        self._busy = True
        try:
            with isolated():
                outcome = self._compile_entry(self, boxed)
        finally:
            self._busy = False
            self.misfits = ()
        if isinstance(outcome, Entry):
            self.stats.compiles += 1
            if failures:
                self.stats.recompiles += 1
                diagnostic = explain(self.name, failures).diagnostic()
                publish("recompile", self.name, failures=failures, diagnostic=diagnostic)
        return outcome

    # The text

    def _regenerate(self) -> None:
        function = self._function()
        if function is None or function.__code__ is not self._code:  # the program has given it other code
            return
        try:
            function.__code__ = self._generate(function.__globals__)
        except BaseException:  # an interrupt: code of an older generation would be told for ever to look again
            self._body_names = {}
            function.__code__ = self._generate(function.__globals__)
            raise

    def _generate(self, namespace: dict[str, Any]) -> types.CodeType:
        """The code of a function for the current entries, with what it names put into `namespace`."""
        self._generation += 1
        self._timed = None
        self._in_force = _, disabled = self._settings()
        names = self._frame.names
        entries = self.in_use()
        self._withdraw(set(self._body_names).difference(entries), namespace)
        for entry in entries:
            namespace.update(entry.namespace)
            if entry not in self._body_names:
                self._body_names[entry] = f"{names.body}{next(self._body_numbers)}"
                namespace[self._body_names[entry]] = entry.body
        if self._native_for_good or disabled:
            namespace[names.native] = self._frame.native
            source = native_source(self._frame)
        else:
            bodies = {entry: self._body_names[entry] for entry in entries}
            source = dispatch_source(self._frame, bodies, self._generation)
        code = artifacts.load("dispatch", self.name, source, {}, self._frame.function_name).__code__
        compat.leave_to_python(code)
        self._code = code
        return code

    def _withdraw(self, entries: Iterable[Entry], namespace: dict[str, Any]) -> None:
        """Let go of entries. A thread that has just found one to fit comes to the miss path instead."""
        miss = namespace[self._frame.names.miss]
        for entry in entries:
            namespace[self._body_names.pop(entry)] = _once_more(miss, entry.steps)
            for name in entry.namespace:
                namespace.pop(name, None)


CompileEntry = Callable[[Dispatcher, list[Any]], Entry | Native]
_live: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _repair_all() -> None:
    """In a forked process: bring what a thread of the parent had begun into a state that calls can go on from."""
    for dispatcher in tuple(_live):
        dispatcher.abandon_compile()


def _settings_changed() -> None:
    for dispatcher in tuple(_live):
        dispatcher.settings_changed()


config.on_change(_settings_changed)


def _once_more(miss: Callable[[list[Any], int], BoxedCallable], steps: bool) -> Callable[..., Any]:
    """What stands in for a body that is gone, and that returned steps or did not."""

    @artifacts.passed_over
    def dispatch_again(boxed: list[Any], inputs: list[Any] = []) -> Any:  # noqa: B006
        inputs.clear()  # the caller's frame still has the list
        body = miss(boxed, -1)
        return (None, body(boxed)) if steps else body(boxed)

    return dispatch_again
