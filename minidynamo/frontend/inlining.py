"""Owns the short bodies of entries as statements, which a dispatcher contains instead of a call.

A body is a residual program, which calls a graph. If the graph is a short host program, the statements of both run in
the frame of the dispatcher. No list is packed and no further Python frame is entered: a call of `relu(x + y) * 2` takes
0.85 of the time. The statements are those of the texts, with other names. Bodies that are longer or have another form
stay functions. Runs nothing; `dispatcher_text.py` prints the statements.
"""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

# The most lines of the text of a residual program, and of a host program.
_MOST_LINES = 28

# The texts of `residual.py`, of `flatten_inputs`, which passes the elements of lists on, and of `host.py`. The
# conventions of a boxed call, the list and its class, are no part of the statements.
_RESIDUAL = re.compile(
    r"def \w+\((?P<boxed>\w+)\):\n"
    r"(    [^\n]+ = (?P=boxed)\n    (?P=boxed)\.clear\(\)\n)?"
    r"(?P<before>(    [^\n]*\n)*?)"
    r"    (?P<args>\w+) = \[(?P<given>[^\n]*)\]\n"
    r"(?P<between>(    [^\n]*\n)*?)"
    r"(?P<indent> +)(?P<targets>[\w, ]+ = )?(?P<graph>\w+)\((?P=args)\)\n"
    r"(?P<after>(    [^\n]*\n)*)"
)
_FLATTEN = re.compile(
    r"def call\((?P<boxed>\w+)\):\n    if (?P=boxed)\.__class__ is not list:\n        [^\n]*\n"
    r"    (?P<inputs>[^\n]+) = (?P=boxed)\n"
    r"(?P<before>(    if [^\n]*\n)*)"
    r"    (?P<args>\w+) = \[(?P<given>[^\n]*)\]\n    (?P=boxed)\.clear\(\)\n"
    r"(?P<between>(    [^\n]*\n)*)"
    r"    return (?P<graph>\w+)\((?P=args)\)\n"
)
_HOST = re.compile(
    r"# The host program of [^\n]*\n"
    r"def call\((?P<boxed>\w+)\):\n    if (?P=boxed)\.__class__ is not list:\n        [^\n]*\n"
    r"(    (?P<inputs>[^\n]+) = (?P=boxed)\n)?    (?P=boxed)\.clear\(\)\n"
    r"(?P<steps>(    [^\n]*\n)*?)"
    r"    return (?P<values>\([^\n]*\))\n\n\ncall\._boxed_call = True\n"
)
# A name to be replaced, or a literal or comment to be left as it is. Attributes and names of arguments are no match.
_NAME = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|#.*|(?<![\w.])[^\W\d]\w*(?!\w|=(?!=))""")


@dataclass(frozen=True)
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
    functions, texts = _chain(body)
    if not texts or not _can_be_statements(texts[0], functions, parameters):
        return None
    residual, host = texts[0], texts[-1]
    taken = {*parameters}
    renamings = [_Renaming(function, text, taken) for function, text in zip(functions, texts)]
    own, indent = renamings[0], residual["indent"]
    lines = [*own.lines(residual["before"]), renamings[1].inputs(own), *own.lines(residual["between"])]
    for caller, below in itertools.pairwise(renamings[1:]):
        steps = [*caller.lines(caller.text["before"]), below.inputs(caller), *caller.lines(caller.text["between"])]
        lines += [f"{indent}{step[4:]}" for step in steps if step]
    lines += [f"{indent}{step[4:]}" for step in renamings[-1].lines(host["steps"])]
    lines.append(f"{indent}{own.line(residual['targets'] or '')}{renamings[-1].line(host['values'])}")
    returned = dict.fromkeys(re.findall(r"\w+", host["values"]))
    variables = functions[-1].__code__.co_varnames
    ended = [renamings[-1].names[name] for name in returned if name in variables]
    lines += [f"{indent}del {', '.join(ended)}"] * bool(ended)
    lines += own.lines(residual["after"])
    words = {*re.findall(r"\w+", "\n".join(lines))}
    used = [(k, name) for k, each in enumerate(renamings) for name in each.globals if each.names[name] in words]
    names = tuple(renamings[number].names[name] for number, name in used)
    callees = tuple(text["graph"] for text in texts[:-1])
    return Inlined(tuple(line[4:] for line in lines if line), names, tuple(used), callees)


def _chain(body: Any) -> tuple[list[Any], list[re.Match[str]]]:
    """Returns the functions from a body to its host program, and their texts; no texts if one has another form."""
    functions, texts = [body], [_RESIDUAL.fullmatch(_text(body))]
    while texts[-1] is not None and texts[-1].re is not _HOST:
        functions.append(functions[-1].__globals__.get(texts[-1]["graph"]))
        text = _text(functions[-1])
        texts.append(_HOST.fullmatch(text) or _FLATTEN.fullmatch(text))
    known = [text for text in texts if text is not None]
    return functions, known if len(known) == len(texts) else []


def _text(function: object) -> str:
    """Returns the text of a generated function, if it is short; otherwise ""."""
    code = getattr(function, "__code__", None)
    lines = [] if code is None else linecache.getlines(code.co_filename)
    return "".join(lines) if len(lines) <= _MOST_LINES else ""


def _can_be_statements(residual: re.Match[str], functions: list[Any], parameters: Collection[str]) -> bool:
    """Returns whether the texts mean the same between the parameters of a frame and without the list of inputs."""
    rest = "".join(residual[part] for part in ("before", "between", "after"))
    constants = all(
        each is None
        or type(each) is bool
        or (type(each) is int and abs(each) < 6)
        or (type(each) is str and each.isidentifier() and sys.intern(each) is each)
        for each in functions[0].__code__.co_consts  # other objects may have replaced equal literals
    )
    builtins = (name for f in functions[1:] for name in f.__code__.co_names if name not in f.__globals__)
    hidden = any(name in parameters for name in builtins)
    return constants and not hidden and not re.search(rf"\b{residual['args']}\b", rest)


class _Renaming:
    """New names for the variables of a function and the globals that it uses. All end in an underscore, as no other
    name in a dispatcher does, except parameters."""

    def __init__(self, function: Any, text: re.Match[str], taken: set[str]) -> None:
        """`taken` are the names in use; it is extended. The parameters of the frame keep their names."""
        self.text = text
        code: types.CodeType = function.__code__
        groups = text.groupdict()
        passed = {groups.get(group) for group in ("boxed", "args", "graph")}
        self.globals = [name for name in code.co_names if name in function.__globals__ and name not in passed]
        kept = passed if "inputs" in groups else {*passed, *taken}
        self.names: dict[str, str] = {}
        for name in (*code.co_varnames, *self.globals):
            if name in kept:
                continue
            self.names[name] = f"{name}_"
            while self.names[name] in taken:
                self.names[name] += "_"
            taken.add(self.names[name])

    def line(self, text: str) -> str:
        """Returns a text with the new names."""
        return _NAME.sub(lambda found: self.names.get(found[0], found[0]), text)

    def lines(self, text: str) -> list[str]:
        """Returns the lines of a text with the new names."""
        return [self.line(line) for line in text.splitlines()]

    def inputs(self, caller: _Renaming) -> str:
        """Returns the assignment of the inputs that a caller passes; "" if there are none."""
        inputs, given = self.text["inputs"], caller.line(caller.text["given"])
        if not inputs:
            return ""
        only_list = given.startswith("*") and "," not in given
        given = given[1:] if only_list else f"{given}," if inputs.endswith(",") or "*" in given else given
        return f"    {self.line(inputs)} = {given}"
