"""Owns the short bodies of entries as statements, which a dispatcher contains instead of a call.

A body is a residual program, which calls a graph. If the graph is a short host program, the statements of both run in
the frame of the dispatcher. No list is packed and no further Python frame is entered: a call of `relu(x + y) * 2` takes
0.85 of the time. The statements are those of `BoxedText`, with other names. Bodies that are longer, or call anything
else, stay functions. Runs nothing; `dispatcher_text.py` prints the statements.
"""

from __future__ import annotations

import builtins
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

from minidynamo.core.records import record
from minidynamo.graph.boxed_text import BoxedText, Call, Pack, text_of

# The most lines of a residual program, and of a host program.
_MOST_LINES = 25

# A name to be replaced, or a literal or comment to be left as it is. Attributes and names of arguments are no match.
_NAME = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|#.*|(?<![\w.])[^\W\d]\w*(?!\w|=(?!=))""")


@record(frozen=True)
class Inlined:
    """The statements of a body, for the function of a dispatcher."""

    #: the lines, without indentation; they return the result of the frame
    lines: tuple[str, ...]
    #: the names of the objects that the lines use, to be bound first
    names: tuple[str, ...]
    #: for each of `names` the number of a function and the name among its globals; function 0 is the body
    globals: tuple[tuple[int, str], ...]
    #: the name of function k + 1 among the globals of function k
    callees: tuple[str, ...]

    def values(self, body: Callable[..., Any]) -> tuple[Any, ...]:
        """Returns the objects of `names` for a body with this text."""
        known: list[Mapping[str, Any]] = [body.__globals__]
        for callee in self.callees:
            known.append(known[-1][callee].__globals__)
        return tuple(known[number][name] for number, name in self.globals)


def inlined(body: Callable[..., Any], parameters: Collection[str]) -> Inlined | None:
    """Returns the statements of a body of a root frame with these parameters; None for a body that stays a function."""
    functions, callees = _chain(body)
    if not functions or not _can_be_statements(functions, parameters):
        return None
    taken = {*parameters}
    programs = [_Program(function, taken, parameters if function is body else ()) for function in functions]
    lines = _statements(programs, "return ")
    if any(line.args in program.used for program in programs for line in program.text.lines if isinstance(line, Pack)):
        return None  # a statement needs the list
    used = [(k, name) for k, program in enumerate(programs) for name in program.globals if name in program.used]
    names = tuple(programs[number].names[name] for number, name in used)
    return Inlined(tuple(lines), names, tuple(used), callees)


def _chain(body: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Returns the functions from a body to its host program, and for each except the last the name of its callee; no
    functions if one is long, or is not generated."""
    functions: list[Any] = []
    callees: list[str] = []
    while True:
        text = text_of(body)
        if text is None or len(text.lines) > _MOST_LINES:
            return [], ()
        functions.append(body)
        callee = next((line.callee for line in text.lines if isinstance(line, Call)), None)
        if callee is None:
            return functions, tuple(callees)
        callees.append(callee)
        body = body.__globals__[callee]


def _can_be_statements(functions: list[Any], parameters: Collection[str]) -> bool:
    """Returns whether the texts mean the same between the parameters of a frame."""
    constants = all(
        each is None
        or type(each) is bool
        or (type(each) is int and abs(each) < 6)
        or (type(each) is str and each.isidentifier() and sys.intern(each) is each)
        for each in functions[0].__code__.co_consts  # other objects may have replaced equal literals
    )
    hidden = vars(builtins).keys() & parameters
    return constants and not any(name in hidden for function in functions[1:] for name in function.__code__.co_names)


class _Program:
    """A function with new names for its variables and the globals that it uses. All end in an underscore, as no other
    name in a dispatcher does, except parameters."""

    def __init__(self, function: Any, taken: set[str], kept: Collection[str]) -> None:
        """`taken` are the names in use; it is extended. The names `kept` stay."""
        self.text: BoxedText = function._text
        code: types.CodeType = function.__code__
        self.variables = code.co_varnames
        self.globals = [name for name in code.co_names if name in function.__globals__]
        self.used: dict[str, None] = {}
        self.names: dict[str, str] = {}
        for name in (*self.variables, *self.globals):
            if name in kept:
                continue
            self.names[name] = f"{name}_"
            while self.names[name] in taken:
                self.names[name] += "_"
            taken.add(self.names[name])

    def renamed(self, text: str) -> str:
        """Returns a text with the new names; adds the old names to `used`."""
        return _NAME.sub(self._new_name, text)

    def _new_name(self, found: re.Match[str]) -> str:
        self.used[found[0]] = None
        return self.names.get(found[0], found[0])


def _statements(programs: list[_Program], returning: str) -> list[str]:
    """Returns the statements of a program with those of its callees in it; `returning` replaces its `return`."""
    program, *callees = programs
    lines: list[str] = []
    for line in program.text.lines:
        match line:
            case Pack():
                lines += _assignment(callees[0], program.renamed(line.items))
            case Call():
                before = returning if line.before == "return " else program.renamed(line.before)
                lines += [f"{line.indent}{each}" for each in _statements(callees, before)]
            case _:
                lines.append(program.renamed(line))
    if program.text.result:
        earlier, program.used = program.used, {}
        lines.append(f"{returning}{program.renamed(program.text.result)}")
        ended = [program.names[name] for name in program.used if name in program.variables]
        lines += [f"del {', '.join(ended)}"] * bool(ended)
        program.used |= earlier
    return lines


def _assignment(callee: _Program, items: str) -> list[str]:
    """Returns the assignment of the items of a list to the inputs of a callee."""
    inputs = callee.text.inputs
    if not inputs:
        return []
    comma = "," * (len(inputs) == 1)
    is_one_list = items.startswith("*") and "," not in items
    return [f"{callee.renamed(', '.join(inputs))}{comma} = {items[1:] if is_one_list else items + comma}"]
