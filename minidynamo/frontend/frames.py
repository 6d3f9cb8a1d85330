"""Owns what a dispatcher must know of the frame that it stands for: how values arrive, are handed on, and run natively.

It knows no entries; what is generated from it is written in `dispatcher_text.py`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import keyword
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minidynamo.bytecode.breaks import BoxedStep, drive, make_continue
from minidynamo.bytecode.instructions import location
from minidynamo.bytecode.layout import FramePoint
from minidynamo.core import artifacts
from minidynamo.core.defaults import Defaults, KeywordDefaults, LeftOut
from minidynamo.errors import CodeCopied, Diagnostic
from minidynamo.graph.boxed import BoxedCallable, mark_boxed

_marks = itertools.count()
_FOLLOW = "old.__wrapped__.__code__ = new.__wrapped__.__code__, which the compiled function follows"


@dataclass(frozen=True)
class OwnNames:
    """Names of ours in the generated function, none of which a parameter begins with.

    The names in an entry's namespace are those of builtins or end in an underscore and a number.
    """

    boxed: str
    fits: str
    miss: str
    native: str
    body: str
    count: str
    time_guards: str
    step: str
    function: str
    code: str
    defaults: str
    keyword_defaults: str
    start_anew: str
    changed: str
    left_out: str

    @classmethod
    def beside(cls, parameters: Sequence[str]) -> OwnNames:
        """Each under its own name, with underscores before it where a parameter begins so."""
        return cls(*(_beside(name, parameters) for name in cls.__dataclass_fields__))


def _beside(name: str, parameters: Sequence[str]) -> str:
    while any(parameter.startswith(name) for parameter in parameters):
        name = f"_{name}"
    return name


class Frame(Protocol):
    """A frame that can be entered again and again.

    `parameters` are its values in order, `signature` is the text between the parentheses of its function, `arrive` the
    first lines. `still_true` are lines that leave when the user's function is no longer what the frame was made for,
    and put its defaults where arguments are left out; `facts` has what they name.
    """

    name: str
    function_name: str
    module: str
    parameters: tuple[str, ...]
    names: OwnNames
    signature: str
    arrive: tuple[str, ...]
    still_true: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def native(self) -> BoxedCallable:
        """Runs the frame from the list of its values as the user wrote it."""
        ...

    def leave(self, call: str) -> list[str]:
        """The lines that put all values into the list, drop their names and return `call`."""
        ...

    def bind(self, function: Callable[..., Any]) -> BoxedCallable:
        """A boxed form of a function with this signature."""
        ...

    def finish(self, function: types.FunctionType) -> None:
        """Complete a new function: what its text does not say."""
        ...


class RootFrame:
    """A call of a function of the user's."""

    def __init__(self, fn: types.FunctionType, name: str) -> None:
        code = fn.__code__
        names = iter(code.co_varnames)
        self.fn = fn
        self.name = name
        self.function_name = _identifier(fn.__name__)
        self.module = fn.__module__
        self.positional = tuple(itertools.islice(names, code.co_argcount))
        self.nameless = self.positional[: code.co_posonlyargcount]
        self.keywords = tuple(itertools.islice(names, code.co_kwonlyargcount))
        self.star = tuple(itertools.islice(names, bool(code.co_flags & inspect.CO_VARARGS)))
        self.star_star = tuple(itertools.islice(names, bool(code.co_flags & inspect.CO_VARKEYWORDS)))
        self.parameters = (*self.positional, *self.star, *self.keywords, *self.star_star)
        self.names = OwnNames.beside(self.parameters)
        self.defaults: tuple[Any, ...] = fn.__defaults__ or ()
        self.keyword_defaults: dict[str, Any] = fn.__kwdefaults__ or {}
        self.signature = self._signature()
        self.arrive: tuple[str, ...] = ()
        known = {name: getattr(fn, attribute) for attribute, name in self._definition()}
        # A name that the globals of no other function have: code that is copied to one does not find it.
        number = next(_marks)
        self.mark = f"{self.names.code}_{number}"
        # In-place changes give the dict of a function other keys: each parameter that is in no tuple may be left out.
        keywords = self.keywords if fn.__kwdefaults__ is not None else ()
        optional = (*self.positional[len(self.positional) - len(self.defaults) :], *keywords)
        self.left_out = {name: LeftOut(name) for name in optional}
        self._left_out_names = {name: f"{self.names.left_out}_{number}_{name}" for name in optional}
        marks = {self._left_out_names[name]: mark for name, mark in self.left_out.items()}
        self.facts: dict[str, Any] = {self.names.function: fn, self.mark: True, **known, **marks}
        self.still_true = self._still_true()

    def _signature(self) -> str:
        """The parameters; the values of defaults come with the function's attributes."""
        required = len(self.positional) - len(self.defaults)
        texts = [f"{name}=None" if k >= required else name for k, name in enumerate(self.positional)]
        if self.nameless:
            texts.insert(len(self.nameless), "/")
        texts += [f"*{name}" for name in self.star] or (["*"] if self.keywords else [])
        texts += [f"{name}=None" if name in self.keyword_defaults else name for name in self.keywords]
        return ", ".join([*texts, *(f"**{name}" for name in self.star_star)])

    def is_current(self) -> bool:
        """Whether the function still has the code and the defaults that it had when the frame was made."""
        return all(getattr(self.fn, attribute) is self.facts[name] for attribute, name in self._definition())

    def _definition(self) -> tuple[tuple[str, str], ...]:
        """The attributes of a function that say what a call of it does, and the names that they go by."""
        names = self.names
        return ("__code__", names.code), ("__defaults__", names.defaults), ("__kwdefaults__", names.keyword_defaults)

    def _still_true(self) -> tuple[str, ...]:
        """Nothing tells a compiled function that its original gets other code or defaults: each call looks."""
        names = self.names
        realize = ((attribute, name) for attribute, name in self._definition() if self.facts[name] is not None)
        changed = " or ".join(f"{names.function}.{attribute} is not {name}" for attribute, name in realize)
        refuse = f'__import__("{__name__}", fromlist=["refuse_copy"]).refuse_copy({self.name!r})'
        return (
            *("try:", f"    {names.changed} = {self.mark} and ({changed})"),
            *("except NameError:", f"    raise {refuse} from None"),
            *(f"if {names.changed}:", f"    {self._start_anew()}"),
            *(line for name in self.left_out for line in self._default(name)),
        )

    def _start_anew(self) -> str:
        return f"return {self.names.start_anew}([{', '.join(self.parameters)}])"

    def _default(self, name: str) -> list[str]:
        """The lines that give a parameter its default where the argument is left out."""
        lines = [f"if {name} is {self._left_out_names[name]}:"]
        if name in self.positional:
            place = self.positional.index(name) - len(self.positional) + len(self.defaults)
            return [*lines, f"    {name} = {self.names.defaults}[{place}]"]
        found = self.names.keyword_defaults
        missing = [f"    if {name!r} not in {found}:", f"        {self._start_anew()}"]
        return [*lines, *missing, f"    {name} = {found}[{name!r}]"]

    def given(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call that has put `values` into the parameters, for a function with other defaults."""
        by_name = dict(zip(self.parameters, values))
        left_out = {name for name, mark in self.left_out.items() if by_name[name] is mark}
        in_order = [*itertools.takewhile(lambda name: name not in left_out, self.positional)]
        starred = [item for name in self.star for item in by_name[name]]
        named = [name for name in (*self.positional[len(in_order) :], *self.keywords) if name not in left_out]
        kwargs = {name: by_name[name] for name in named}
        return [*(by_name[name] for name in in_order), *starred], kwargs | by_name.get("".join(self.star_star), {})

    def leave(self, call: str) -> list[str]:
        listed = ", ".join(self.parameters)
        dropped = [f"del {listed}"] if listed else []
        return [f"{self.names.boxed} = [{listed}]", *dropped, f"return {call}"]

    @functools.cached_property
    def native(self) -> BoxedCallable:
        return self.bind(self.fn)

    def bind(self, function: Callable[..., Any]) -> BoxedCallable:
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
        function.__defaults__ = self.fn.__defaults__
        function.__kwdefaults__ = self.fn.__kwdefaults__
        functools.update_wrapper(function, self.fn)

    def mark_defaults(self, function: types.FunctionType) -> None:
        """Give a function that begins with `still_true` what it knows left out arguments by."""
        marks = self.left_out
        function.__defaults__ = Defaults.of(self.fn, [marks[name] for name in self.positional if name in marks])
        keywords = {name: marks[name] for name in self.keywords if name in marks}
        function.__kwdefaults__ = KeywordDefaults.of(self.fn, keywords)


class ResumeFrame:
    """A frame of a function of the user's that is entered in the middle."""

    def __init__(self, point: FramePoint, namespace: dict[str, Any]) -> None:
        self.point = point
        self.namespace = namespace
        self.name = f"{point.code.co_qualname}.from_line_{location(point.code, point.index).lineno}"
        self.function_name = _identifier(self.name)
        self.module = str(namespace.get("__name__"))
        self.parameters = point.parameters
        self.names = OwnNames.beside(self.parameters)
        self.signature = self.names.boxed
        listed = "".join(f"{parameter}, " for parameter in self.parameters)
        self.arrive: tuple[str, ...] = (f"{listed.rstrip()} = {self.names.boxed}",) if listed else ()
        self.facts: dict[str, Any] = {}
        self.still_true: tuple[str, ...] = ()  # the code of a frame that has begun stays what it is

    def leave(self, call: str) -> list[str]:
        return [f"del {', '.join(self.parameters)}"] * bool(self.parameters) + [f"return {call}"]

    @functools.cached_property
    def native(self) -> BoxedCallable:
        return make_continue(self.point, self.namespace)

    def bind(self, function: Callable[..., Any]) -> BoxedCallable:
        return function

    def finish(self, function: types.FunctionType) -> None:
        mark_boxed(function)


def entering(frame: RootFrame, point: FramePoint, step: BoxedStep) -> Callable[..., types.FunctionType]:
    """What makes functions, of the cells of a closure each, that enter the frame of a call at its head, which `point`
    is, by `step`. They have the signature of the frame's function, but no defaults yet."""
    free = frame.fn.__code__.co_freevars
    taken = (*frame.parameters, *free)
    boxed, call, cell, run, first = (_beside(name, taken) for name in ("boxed", "call", "cell", "drive", "step"))
    made = [name if name in free else f"{cell}({name if name in frame.parameters else ''})" for name in point.cells]
    lines = [f"{boxed} = [{', '.join([*made, *point.locals])}]"]
    lines += [f"del {', '.join(frame.parameters)}"] * bool(frame.parameters)
    source = [f"def enter({', '.join(free)}):", f"    def {call}({frame.signature}):"]
    source += [f"        {line}" for line in (*lines, f"return {run}({first}, {boxed})")]
    namespace = {"__name__": frame.module, cell: types.CellType, run: drive, first: step}
    return artifacts.load("native", frame.name, "\n".join([*source, f"    return {call}", ""]), namespace, "enter")


def refuse_copy(name: str) -> CodeCopied:
    """The error for code of a compiled function that was put into another function, where its entries are not."""
    what = f"the code of the compiled function {name} was given to another function"
    why = "It works with what its own function has compiled."
    return CodeCopied(Diagnostic("MD307", what, why=why, fix=_FOLLOW))


def _identifier(name: str) -> str:
    stem = re.sub(r"\W+", "_", name).strip("_") or "function"
    return f"{stem}_" if keyword.iskeyword(stem) else stem
