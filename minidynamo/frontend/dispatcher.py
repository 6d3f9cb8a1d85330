"""Owns the dispatcher of a frame: the entries, the generated function that chooses an entry, and the miss path.

It does not capture or compile (`compile_entry` does), writes no guards, and leaves the text of the function to
`dispatcher_text.py`. Every layer empties its list of arguments, so that a donated argument dies at its last use. A new
entry means a new source, whose code replaces the code of the function. While other threads still run old code, the
bodies named there stay callable. A missing guard raises NameError and counts as a failed guard.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from minidynamo import compat
from minidynamo.bytecode.breaks import BoxedStep, run_steps
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.compile_scope import deeper_stack, isolated
from minidynamo.core.events import notice, publish
from minidynamo.core.locks import ForkSafeLock
from minidynamo.core.names import weakly
from minidynamo.core.records import record
from minidynamo.core.stats import Stats
from minidynamo.errors import Diagnostic, MinidynamoError, RecompileRefused
from minidynamo.frontend.dispatcher_text import dispatch_source, frozen_function, native_source, timed_function
from minidynamo.frontend.frames import Frame, ResumeFrame, RootFrame
from minidynamo.frontend.inlining import Inlined, inlined
from minidynamo.frontend.locked_bodies import body_of
from minidynamo.graph.boxed import BoxedCallable, mark_boxed
from minidynamo.guards.cache import Entry, in_order
from minidynamo.guards.recompiles import Misfits, Recompile, explain, refusal
from minidynamo.guards.state import controlling_mode

BackendKey = Callable[[], Hashable]

# After the end of compiling: the number of calls that fit no entry, one after the other, before the entries are unused.
_MOST_MISSES = 64

# One compile at a time in the whole process: capture changes state that all threads share, and two threads whose
# frames call each other must not wait for each other.
_compiling = ForkSafeLock(lambda: _repair_all())


@record(frozen=True)
class Native:
    """The outcome of a miss without an entry: the frame runs eagerly, in this call or permanently."""

    permanent: bool


class Dispatcher:
    """The entries of one frame and the generated function that chooses an entry.

    The function of a root frame has the signature, defaults, attributes and names of the user's function, and keeps the
    dispatcher alive. The dispatcher of a resumed frame keeps its function alive, which takes the list that `FramePoint`
    describes; bodies return (next step, list) or (None, value).
    """

    def __init__(
        self,
        frame: Frame,
        compile_entry: CompileEntry,
        *,
        shared_entry: SharedEntry = lambda dispatcher, values: None,
        diversion: Callable[[list[Any]], Callable[..., Any] | None] = lambda values: None,
        on_end: Callable[[], object] = lambda: None,
        stats: Stats | None = None,
        backend_key: BackendKey = lambda: None,
        waits: bool = True,
        counts_calls: bool = True,
        varies: bool = True,
    ) -> None:
        """Each miss calls `compile_entry(dispatcher, values)` for an Entry or Native. `values` are the arguments in the
        order of `parameters`; the callee must neither change nor keep the list. Its errors propagate to the caller.
        Before that, `diversion(values)` may return another function to call with the arguments, and
        `shared_entry(dispatcher, values)` an entry of an equal callable. `on_end()` is called when the frame runs
        eagerly for good because no entry has fitted for long.

        Calls use only entries whose `backend_key` equals `backend_key()`, which is evaluated again when settings
        change. `waits`: calls that miss while another thread compiles wait for that thread; otherwise they run eagerly.
        `counts_calls`: `stats` counts calls of the frame (False for a callee at a break). `varies`: entries serve
        varying sizes, as messages say.
        """
        self.name = frame.name
        self.parameters = frame.parameters
        self.stats = Stats() if stats is None else stats
        self.entries: list[Entry] = []
        # While an entry is compiled: for each older entry, the guards that the call does not fulfil.
        self.misfits: Misfits = ()
        # For `make_entry`: unique among all entries of this dispatcher, including dropped ones.
        self.next_number = 0
        self._frame = frame
        self._compile_entry = compile_entry
        self._shared_entry = shared_entry
        self._diversion = diversion
        self._on_end = on_end
        self._backend_key = backend_key
        self._waits = waits
        self._in_force = self._settings()
        self._counter = self.stats.counter(of_calls=counts_calls)
        self._counts_calls = counts_calls
        self._varies = varies
        # Per backend whose compiling ended: the number of calls then, and of calls since then that fitted no entry.
        self._stopped_backends: dict[Hashable, tuple[int, int]] = {}
        self._timed: Callable[..., int] | None = None
        self._generation = 0
        self._code: types.CodeType | None = None
        self._always_native = False
        self._loop: BoxedCallable | None = None
        self._busy = False
        self._body_names: dict[Entry, str] = {}
        self._body_numbers = itertools.count()
        self._inlined: dict[Entry, Inlined] = {}
        self._keeps_function = isinstance(frame, ResumeFrame)
        self._strong_reference: types.FunctionType | None = None
        self._function: Callable[[], types.FunctionType | None] = lambda: None
        _live.add(self)

    @property
    def function(self) -> types.FunctionType:
        """Returns the generated function; generates a new one if the user's references have died."""
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
                self._strong_reference = function if self._keeps_function else None
            return function

    def _own_names(self) -> dict[str, Any]:
        """Returns the objects that the generated function calls and compares, by their names in the frame."""
        methods: dict[str, Callable[..., Any]] = {"miss": self.miss, "time_guards": self.time_guards}
        if self._keeps_function:
            methods = {name: weakly(method) for name, method in methods.items()}
        if isinstance(self._frame, RootFrame):
            methods["follow_change"] = functools.partial(self._follow_change, self._frame)
            methods["hide"] = artifacts.own_frames_hidden
        names = self._frame.names
        called = {getattr(names, name): method for name, method in methods.items()}
        return called | {names.ticks: self._counter.ticks} | self._frame.facts

    def is_current(self) -> bool:
        """Returns whether the entries still match the code and defaults of the user's function."""
        return not isinstance(self._frame, RootFrame) or self._frame.is_current()

    def run_eagerly(self, boxed: list[Any]) -> Any:
        """Runs the frame eagerly from its list of values."""
        return self._frame.native(boxed)

    def step(self) -> BoxedStep:
        """Returns a function that calls `function` through a weak reference, to be a constant of a break function.

        Code objects are invisible to the garbage collector, and the break functions of a loop refer back to their own
        resume point.
        """
        reference = weakref.ref(self.function)

        @artifacts.skipped_by_warnings
        def resume(boxed: list[Any]) -> Any:
            return reference()(boxed)  # type: ignore[misc]

        return mark_boxed(resume)

    def source(self) -> str:
        """Returns the text of the current generated function."""
        with _compiling:
            return "".join(linecache.getlines(self.function.__code__.co_filename))

    def in_use(self) -> list[Entry]:
        """Returns the entries that calls check, in the order of the checks."""
        return [entry for entry in in_order(self.entries) if entry.backend_key == self._in_force[0]]

    def frozen(self, check_every: int) -> types.FunctionType:
        """Returns a function like `function` that checks only distinguishing guards; every `check_every` calls, all
        guards.
        """
        frame = self._frame
        if isinstance(frame, RootFrame) and frame.owner is not None:  # the frozen function takes the owner
            frame = RootFrame(frame.fn, frame.name)
        return frozen_function(frame, self.in_use(), check_every, self._backend_key)

    # Changes of the entries

    def install(self, entry: Entry) -> None:
        """Adds an entry for calls that start from now on. Drops entries that can never fit again."""
        with _compiling:
            self.next_number += 1
            self.entries = [*(old for old in self.entries if old.alive()), entry]
            self._regenerate()
        publish("entry", self.name, entry=entry)

    def stop_compiling(self) -> None:
        """Ends compiling for the backend in force: calls that fit no entry run eagerly."""
        self._stopped_backends.setdefault(self._backend_key(), (self._counter.count(), 0))

    def leave_to_python(self, loop: BoxedCallable | None = None) -> bool:
        """Runs the frame eagerly from now on: to its end, or with `loop`, which returns the next step. Returns whether
        anything changes."""
        with _compiling:
            if self._always_native and (self._loop is None or loop is not None):
                return False
            self._always_native, self._loop = True, loop
            self._regenerate()
            return True

    @property
    def _native(self) -> BoxedCallable:
        return self._loop or self._frame.native

    def reset(self) -> None:
        """Forgets all entries, and a decision to run eagerly from then on."""
        with _compiling:
            self.entries = []
            self._stopped_backends.clear()
            self._always_native, self._loop = False, None
            self._regenerate()

    def abandon_compile(self) -> None:
        """Forgets a compile that will never end, at any stage."""
        self._busy, self.misfits = False, ()
        self._body_names = {}
        self._regenerate()

    def settings_changed(self) -> None:
        """Uses the entries of the settings in force from now on; none when compiling is disabled."""
        with _compiling:
            if self._in_force != self._settings():
                self._regenerate()

    def _settings(self) -> tuple[Hashable, bool]:
        return self._backend_key(), config.disable or config.stance == "force_eager"

    # Called by the generated function

    def _follow_change(self, old: RootFrame, values: list[Any]) -> Any:
        """Serves a call after a change of the code or the defaults of the user's function, which `old` had."""
        args, kwargs = old.call_arguments(values)
        del values
        if old.is_current():  # only a keyword's default is gone: Python raises the error
            return old.fn(*args, **kwargs)
        with _compiling:
            if self._frame is old:
                self._replace_frame(RootFrame(old.fn, old.name, old.owner))
        return self._with_owner()(*args, **kwargs)

    def _with_owner(self) -> Callable[..., Any]:
        """Returns the generated function, or one that takes the owner too."""
        function = self.function
        if not isinstance(self._frame, RootFrame) or self._frame.owner is None:
            return function
        return lambda owner, *args, **kwargs: function(*args, **kwargs)

    def _replace_frame(self, frame: RootFrame) -> None:
        self._frame = frame
        self.parameters = frame.parameters
        function = self._function()
        if function is not None:
            function.__globals__.update(self._own_names())
            frame.mark_defaults(function)
        self.reset()

    def time_guards(self, boxed: list[Any]) -> None:
        """Counts a call, and measures the time to find the entry for these values.

        The generated function calls this once in 1024 calls; the first time, its walks become machine code.
        """
        self._counter.renew()
        if (function := self._function()) is not None:
            function.__globals__[self._frame.names.ticks] = self._counter.ticks
        if not _compiling.acquire(blocking=False):  # another thread compiles; calls must not wait for it
            return
        try:
            entries = self.in_use()
            for entry in entries:
                if entry.condition.walk is not None:
                    entry.condition.walk.make_native()
            self._timed = timed = self._timed or timed_function(self._frame, entries)
        finally:
            _compiling.release()
        self.stats.add_timed_call(timed(*boxed))

    def miss(self, boxed: list[Any], generation: int) -> BoxedCallable:
        """Returns the function that runs a call without a fitting entry in `generation`; nothing else holds the
        arguments meanwhile.

        The generated function calls the result itself, to keep this method out of tracebacks.
        """
        try:
            return self._resolve(boxed, generation)
        except MinidynamoError as error:
            if config.verbose:
                raise
            raise error.with_traceback(None)  # noqa: B904 (the cause is kept; these frames do not help the user)

    def _resolve(self, boxed: list[Any], generation: int) -> BoxedCallable:
        """Returns the body of a new entry, or the function that runs the frame eagerly."""
        diversion = self._diversion(boxed)
        if diversion is not None:
            self.stats.take_back(of_calls=self._counts_calls)
            return self._frame.bind(diversion)
        if not _compiling.acquire(blocking=self._waits):
            self.stats.native_runs += 1
            return self._frame.native
        try:
            with deeper_stack():
                return self._resolve_locked(boxed, generation)
        finally:
            _compiling.release()

    def _resolve_locked(self, boxed: list[Any], generation: int) -> BoxedCallable:
        if generation != self._generation:
            return self._call_again()
        # Capture may call the frame itself, if it needs a value at once.
        eagerly = self._busy or self._is_stopped() or self._is_mode_active()
        outcome: Entry | Native | None = None if eagerly else self._shared_entry(self, boxed)
        if outcome is None:
            self.stats.misses += 1
            eagerly = eagerly or config.stance == "eager_on_recompile"
            outcome = Native(permanent=False) if eagerly else self._compile_missing(boxed)
        if isinstance(outcome, Entry):
            self.install(outcome)
            body = body_of(outcome, self._frame)
            return functools.partial(run_steps, body) if outcome.steps else body
        self.stats.native_runs += 1
        if outcome.permanent and not self._always_native:
            if self.entries:  # they stay valid for other paths through the frame
                self.stop_compiling()
            else:
                self.leave_to_python()
        return self._native

    def _call_again(self) -> BoxedCallable:
        """Returns the function that enters the frame again, with the entries that there are now."""
        self.stats.take_back(of_calls=self._counts_calls)
        return self._frame.bind(self._with_owner())

    def _is_stopped(self) -> bool:
        """Returns whether compiling has ended for the backend in force. After many calls of which none fitted an entry,
        calls check no entry any more."""
        key = self._backend_key()
        if key not in self._stopped_backends:
            return False
        start, missed = self._stopped_backends[key]
        self._stopped_backends[key] = (start, missed + 1)
        if missed + 1 >= _MOST_MISSES and self._counter.count() - start == missed + 1:
            self.leave_to_python()
            self._on_end()
        return True

    def explained(self, misfits: Misfits) -> Recompile:
        """Returns the record of a recompile."""
        return explain(self.name, misfits, varies=self._varies)

    def _is_mode_active(self) -> bool:
        """Returns whether an active mode decides the meaning of operations; shows one notice."""
        mode = controlling_mode()
        if mode:
            what = f"{self.name} runs eagerly while a {mode} is active"
            notice(Diagnostic("MD303", what, why="The mode decides what each operation means."))
        return bool(mode)

    def _compile_missing(self, boxed: list[Any]) -> Entry | Native:
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
                diagnostic = self.explained(failures).diagnostic()
                publish("recompile", self.name, failures=failures, diagnostic=diagnostic)
        return outcome

    # The text

    def _regenerate(self) -> None:
        function = self._function()
        if function is None or function.__code__ is not self._code:  # the program has set other code
            return
        try:
            function.__code__ = self._generate(function.__globals__)
        except BaseException:  # an interrupt: code of an older generation would redispatch for ever
            self._body_names = {}
            function.__code__ = self._generate(function.__globals__)
            raise

    def _generate(self, namespace: dict[str, Any]) -> types.CodeType:
        """Generates the function's code for the current entries; adds the names that the code uses to `namespace`."""
        self._generation += 1
        self._timed = None
        self._in_force = _, disabled = self._settings()
        names = self._frame.names
        entries = self.in_use()
        self._withdraw(set(self._body_names).difference(entries), namespace)
        for entry in entries:
            namespace.update(entry.condition.namespace)
            if entry not in self._body_names:
                self._body_names[entry] = f"{names.body}{next(self._body_numbers)}"
                namespace[self._body_names[entry]] = self._body(entry)
        if self._always_native or disabled:
            namespace[names.native] = self._native
            source = native_source(self._frame)
        else:
            bodies = {entry: self._body_names[entry] for entry in entries}
            source = dispatch_source(self._frame, bodies, self._generation, self._inlined)
        code = artifacts.load("dispatch", self.name, source, {}, self._frame.function_name).__code__
        compat.leave_to_python(code)
        self._code = code
        return code

    def _body(self, entry: Entry) -> Any:
        """Returns the body of an entry; for a short body, the objects that its statements use."""
        is_plain = isinstance(self._frame, RootFrame) and not entry.steps and not entry.condition.returns_inputs
        found = inlined(entry.body, self.parameters) if is_plain else None
        if found is None:
            return body_of(entry, self._frame)
        self._inlined[entry] = found
        return found.values(entry.body)

    def _withdraw(self, entries: Iterable[Entry], namespace: dict[str, Any]) -> None:
        """Removes entries. A thread that has just matched a removed entry takes the miss path instead."""
        miss = namespace[self._frame.names.miss]
        for entry in entries:
            namespace[self._body_names.pop(entry)] = _redispatcher(miss, entry.steps)
            self._inlined.pop(entry, None)
            for name in entry.condition.namespace:
                namespace.pop(name, None)


CompileEntry = Callable[[Dispatcher, list[Any]], Entry | Native]
SharedEntry = Callable[[Dispatcher, list[Any]], Entry | None]
_live: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _repair_all() -> None:
    """Repairs, in a forked process, the dispatchers for which a thread of the parent was compiling."""
    for dispatcher in tuple(_live):
        dispatcher.abandon_compile()


def _settings_changed() -> None:
    for dispatcher in tuple(_live):
        dispatcher.settings_changed()


config.on_change(_settings_changed)


def _redispatcher(miss: Callable[[list[Any], int], BoxedCallable], steps: bool) -> Callable[..., Any]:
    """Returns the replacement for the body of a removed entry; `steps`: the body returned steps."""

    @artifacts.skipped_by_warnings
    def dispatch_again(boxed: list[Any], inputs: list[Any] = []) -> Any:  # noqa: B006
        inputs.clear()  # the caller's frame still has the list
        body = miss(boxed, -1)
        return (None, body(boxed)) if steps else body(boxed)

    return dispatch_again
