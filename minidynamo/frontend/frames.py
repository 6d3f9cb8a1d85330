"""Owns the frames that dispatchers serve: how values arrive, are passed on, and run eagerly.

It knows no entries; `dispatcher_text.py` writes the text that is generated from a frame.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from minidynamo.bytecode.breaks import BoxedStep, make_resume, run_steps
from minidynamo.bytecode.instructions import location
from minidynamo.bytecode.layout import FramePoint
from minidynamo.core import artifacts
from minidynamo.core.defaults import Defaults, KeywordDefaults, LeftOut
from minidynamo.core.names import identifier
from minidynamo.core.records import record
from minidynamo.errors import CodeCopied, Diagnostic
from minidynamo.graph.boxed import BoxedCallable, mark_boxed

_marks = itertools.count()
_FOLLOW = "old.__wrapped__.__code__ = new.__wrapped__.__code__, which the compiled function follows"


@record(frozen=True)
class OwnNames:
    """Names of the generated function's own variables, none of which is a prefix of a parameter.

    The names in an entry's namespace are those of builtins or end in an underscore and a number.
    """

    boxed: str
    fits: str
    miss: str
    native: str
    body: str
    count: str
    ticks: str
    time_guards: str
    step: str
    owner: str
    function: str
    code: str
    defaults: str
    keyword_defaults: str
    follow_change: str
    changed: str
    left_out: str
    hide: str

    @classmethod
    def avoiding(cls, parameters: Sequence[str]) -> OwnNames:
        """Returns the names; underscores are prepended to a name that begins a parameter."""
        return cls(*(_avoiding(name, parameters) for name in cls.__dataclass_fields__))


def _avoiding(name: str, parameters: Sequence[str]) -> str:
    while any(parameter.startswith(name) for parameter in parameters):
        name = f"_{name}"
    return name


class RootFrame:
    """A call of a user's function."""

    def __init__(self, fn: types.FunctionType, name: str | None = None, owner: weakref.ref[Any] | None = None) -> None:
        """`owner`: the first argument of all calls; the generated function does not take it."""
        code = fn.__code__
        names = iter(code.co_varnames)
        self.fn = fn
        self.owner = owner
        self.name = name or fn.__qualname__
        self.function_name = _function_name(fn.__name__)
        #: the name of the function's module
        self.module = fn.__module__
        self.positional = tuple(itertools.islice(names, code.co_argcount))
        self.positional_only = self.positional[: code.co_posonlyargcount]
        self.keywords = tuple(itertools.islice(names, code.co_kwonlyargcount))
        self.star = tuple(itertools.islice(names, bool(code.co_flags & inspect.CO_VARARGS)))
        self.star_star = tuple(itertools.islice(names, bool(code.co_flags & inspect.CO_VARKEYWORDS)))
        #: the names of the frame's values, in order
        self.parameters = (*self.positional, *self.star, *self.keywords, *self.star_star)
        self.names = OwnNames.avoiding(self.parameters)
        self.defaults: tuple[Any, ...] = fn.__defaults__ or ()
        self.keyword_defaults: dict[str, Any] = fn.__kwdefaults__ or {}
        #: the text between the parentheses of the generated function
        self.signature = self._signature()
        #: the first lines of the generated function: they unpack the values
        self.prologue: tuple[str, ...] = ()
        known = {name: getattr(fn, attribute) for attribute, name in self._definition()}
        # A name in the globals of this function only: code copied to another function does not find the name.
        number = next(_marks)
        self.mark = f"{self.names.function}{number}"
        # In-place changes may add keys to the dict of keyword defaults: any keyword-only parameter may be left out.
        keywords = self.keywords if fn.__kwdefaults__ is not None else ()
        optional = (*self.positional[len(self.positional) - len(self.defaults) :], *keywords)
        self.left_out = {name: LeftOut(name) for name in optional}
        self._left_out_names = {name: f"{self.names.left_out}_{number}_{name}" for name in optional}
        marks = {self._left_out_names[name]: mark for name, mark in self.left_out.items()}
        #: the objects that `validity_check` names
        self.facts: dict[str, Any] = {self.mark: fn, self.names.owner: owner, **known, **marks}
        #: lines that return early if the code or the defaults of the user's function have changed, and that replace
        #: left out arguments by defaults
        self.validity_check = self._validity_check()

    def _signature(self) -> str:
        """Returns the text of the parameters; the values of defaults are attributes of the function."""
        required = len(self.positional) - len(self.defaults)
        first = 0 if self.owner is None else 1
        texts = [f"{name}=None" if k >= required else name for k, name in enumerate(self.positional)]
        if self.positional_only[first:]:
            texts.insert(len(self.positional_only), "/")
        del texts[:first]
        texts += [f"*{name}" for name in self.star] or (["*"] if self.keywords else [])
        texts += [f"{name}=None" if name in self.keyword_defaults else name for name in self.keywords]
        return ", ".join([*texts, *(f"**{name}" for name in self.star_star)])

    def is_current(self) -> bool:
        """Returns whether the function still has the code and the defaults from the creation of the frame."""
        return all(getattr(self.fn, attribute) is self.facts[name] for attribute, name in self._definition())

    def _definition(self) -> tuple[tuple[str, str], ...]:
        """Returns the attributes of a function that define its calls, with their names in the generated code."""
        names = self.names
        return ("__code__", names.code), ("__defaults__", names.defaults), ("__kwdefaults__", names.keyword_defaults)

    def _validity_check(self) -> tuple[str, ...]:
        """Returns the lines that compare code and defaults in each call: Python sends no event when they change."""
        names = self.names
        compared = ((attribute, name) for attribute, name in self._definition() if self.facts[name] is not None)
        changed = " or ".join(f"{self.mark}.{attribute} is not {name}" for attribute, name in compared)
        owner = [] if self.owner is None else [f"    {self.positional[0]} = {names.owner}()"]
        refuse = f'__import__("{__name__}", fromlist=["refuse_copy"]).refuse_copy({self.name!r})'
        return (
            *("try:", f"    {names.changed} = {changed}", *owner),
            *("except NameError:", f"    raise {refuse} from None"),
            *(f"if {names.changed}:", f"    {self._follow_change()}"),
            *(line for name in self.left_out for line in self._default(name)),
        )

    def _follow_change(self) -> str:
        return f"return {self.names.follow_change}([{', '.join(self.parameters)}])"

    def _default(self, name: str) -> list[str]:
        """Returns the lines that replace a left out argument by the default."""
        lines = [f"if {name} is {self._left_out_names[name]}:"]
        if name in self.positional:
            position = self.positional.index(name) - len(self.positional) + len(self.defaults)
            return [*lines, f"    {name} = {self.names.defaults}[{position}]"]
        keyword_defaults_name = self.names.keyword_defaults
        missing = [f"    if {name!r} not in {keyword_defaults_name}:", f"        {self._follow_change()}"]
        return [*lines, *missing, f"    {name} = {keyword_defaults_name}[{name!r}]"]

    def call_arguments(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of the call that bound `values`, for a function with other defaults."""
        by_name = dict(zip(self.parameters, values))
        left_out = {name for name, mark in self.left_out.items() if by_name[name] is mark}
        in_order = [*itertools.takewhile(lambda name: name not in left_out, self.positional)]
        starred = [item for name in self.star for item in by_name[name]]
        named = [name for name in (*self.positional[len(in_order) :], *self.keywords) if name not in left_out]
        kwargs = {name: by_name[name] for name in named}
        return [*(by_name[name] for name in in_order), *starred], kwargs | by_name.get("".join(self.star_star), {})

    def tail_call(self, call: str) -> list[str]:
        """Returns the lines that put all values into the list, delete their names and return `call`."""
        listed = ", ".join(self.parameters)
        dropped = [f"del {listed}"] if listed else []
        return [f"{self.names.boxed} = [{listed}]", *dropped, f"return {call}"]

    @functools.cached_property
    def native(self) -> BoxedCallable:
        """Returns the function that runs the frame eagerly from the list of its values."""
        return self.bind(self.fn)

    def bind(self, function: Callable[..., Any]) -> BoxedCallable:
        """Returns a boxed form of a function with the signature of the user's function."""
        boxed: BoxedCallable = self._binder(function)
        return boxed

    @functools.cached_property
    def _binder(self) -> types.FunctionType:
        arguments = ["boxed.pop()" for _ in self.positional] + ["*boxed.pop()" for _ in self.star]
        arguments += [f"{name}=boxed.pop()" for name in self.keywords] + ["**boxed.pop()" for _ in self.star_star]
        source = [
            "def bind(function):",
            "    def call(boxed):",
            "        boxed.reverse()",
            f"        return function({', '.join(arguments)})",
            "    return call",
            "",
        ]
        return artifacts.load("native", self.name, "\n".join(source), {"__name__": self.module}, "bind")

    def finish(self, function: types.FunctionType) -> None:
        """Sets the attributes of a new function that its text cannot express."""
        function.__defaults__ = self.fn.__defaults__
        function.__kwdefaults__ = self.fn.__kwdefaults__
        functools.update_wrapper(function, self.fn)

    def mark_defaults(self, function: types.FunctionType) -> None:
        """Sets the marks of left out arguments as the defaults of a function that begins with `validity_check`."""
        marks = self.left_out
        function.__defaults__ = Defaults.of(self.fn, [marks[name] for name in self.positional if name in marks])
        keywords = {name: marks[name] for name in self.keywords if name in marks}
        function.__kwdefaults__ = KeywordDefaults.of(self.fn, keywords)


class ResumeFrame:
    """A frame of a user's function that is entered in the middle; it has the attributes of a `RootFrame`."""

    def __init__(self, point: FramePoint, namespace: dict[str, Any]) -> None:
        self.point = point
        self.namespace = namespace
        self.name = f"{point.code.co_qualname}.from_line_{location(point.code, point.index).lineno}"
        self.function_name = _function_name(self.name)
        self.module = str(namespace.get("__name__"))
        self.parameters = point.parameters
        self.names = OwnNames.avoiding(self.parameters)
        self.signature = self.names.boxed
        listed = "".join(f"{parameter}, " for parameter in self.parameters)
        self.prologue: tuple[str, ...] = (f"{listed.rstrip()} = {self.names.boxed}",) if listed else ()
        self.facts: dict[str, Any] = {}
        self.validity_check: tuple[str, ...] = ()  # the code of a running frame does not change

    def tail_call(self, call: str) -> list[str]:
        return [f"del {', '.join(self.parameters)}"] * bool(self.parameters) + [f"return {call}"]

    @functools.cached_property
    def native(self) -> BoxedCallable:
        return make_resume(self.point, self.namespace)

    def bind(self, function: Callable[..., Any]) -> BoxedCallable:
        return function

    def finish(self, function: types.FunctionType) -> None:
        mark_boxed(function)


# A frame that can be entered again and again.
Frame = RootFrame | ResumeFrame


def hiding_frames(lines: Sequence[str], hide: str) -> list[str]:
    """Returns lines that leave the frames of minidynamo out of the traceback of an error of `lines`; `hide` is the name
    of `own_frames_hidden`."""
    return ["try:", *(f"    {line}" for line in lines), f"except {hide}():", "    raise"]


def closure_factory(frame: RootFrame, point: FramePoint, step: BoxedStep) -> Callable[..., types.FunctionType]:
    """Returns `enter(*cells)`, a factory of functions that call `step` at `point`, the start of the frame.

    The functions have the signature of the frame's function, but no defaults yet.
    """
    free = frame.fn.__code__.co_freevars
    taken = (*frame.parameters, *free)
    own = "boxed", "call", "cell", "run_steps", "step", "own_frames_hidden"
    boxed, call, cell, run, first, hide = (_avoiding(name, taken) for name in own)
    cell_texts = [
        name if name in free else f"{cell}({name if name in frame.parameters else ''})" for name in point.cells
    ]
    lines = [f"{boxed} = [{', '.join([*cell_texts, *point.locals])}]"]
    lines += [f"del {', '.join(frame.parameters)}"] * bool(frame.parameters)
    source = [f"def enter({', '.join(free)}):", f"    def {call}({frame.signature}):"]
    source += [f"        {line}" for line in (*lines, *hiding_frames([f"return {run}({first}, {boxed})"], hide))]
    namespace = {"__name__": frame.module, cell: types.CellType, run: run_steps, first: step}
    namespace[hide] = artifacts.own_frames_hidden
    return artifacts.load("native", frame.name, "\n".join([*source, f"    return {call}", ""]), namespace, "enter")


def refuse_copy(name: str) -> CodeCopied:
    """Returns the error for code of a compiled function in another function, where the entries are missing."""
    what = f"the code of the compiled function {name} was given to another function"
    why = "The code depends on the entries of its own function."
    return CodeCopied(Diagnostic("MD307", what, why=why, fix=_FOLLOW))


def _function_name(name: str) -> str:
    stem = identifier(name, "function")
    return f"_{stem}" if stem[0].isdigit() else stem
