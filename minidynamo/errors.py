"""Owns the error types, and the common form of all messages to users.

It does not decide when to raise an error: the file that finds an error builds a `Diagnostic` and raises.

The exception tree::

    MinidynamoError
     +-- GraphBreak            capture stops here; with fullgraph=True it reaches the user as Unsupported
     |    +-- SkipFrame        the frame cannot be captured at all and runs eagerly
     +-- Unsupported           the function cannot be captured as the user asked
     +-- RecompileLimit        too many versions of one function
     +-- RecompileRefused      (also RuntimeError) a call would have been compiled, and the stance forbids it
     +-- FrozenCallDiffers     (also RuntimeError) a guard of a frozen function does not hold
     +-- CodeCopied            (also RuntimeError) code of a compiled function was put into another function
     +-- BackendError          a backend raised
     |    +-- KernelsUnavailable   torch's kernels run instead, after one notice
     |    |    +-- ToolchainMissing     there is no compiler
     |    |    +-- KernelBuildError     a kernel did not compile or load
     |    +-- GraphRefused         the autograd stage cannot express a graph that eager can run
     +-- ComptimeError         a comptime callback raised
     +-- InternalError         a bug in minidynamo
     +-- ArgumentError         (also TypeError) a bad argument to a public function
     |    +-- ConflictingArguments (also RuntimeError) arguments that exclude each other
     |    +-- InvalidCond          (also RuntimeError) an argument that `cond` does not take
     |    +-- InvalidHook          a hook for saved tensors cannot be put into a graph
     |         +-- HookReturnsSubclass (also NotImplementedError) the hook returns a subclass of torch.Tensor
     +-- DeclaredSizeFixed     (also ValueError) a size was declared to vary, and the program fixes it
     +-- UnknownName           (also ValueError) a name that is not in a table
"""

from __future__ import annotations

import contextlib
import difflib
import linecache
import os
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class UserLocation:
    """A position in the user's source."""

    filename: str
    #: From 1.
    lineno: int
    function: str
    #: From 0, in UTF-8 bytes, as `co_positions` counts; so is `end_col`.
    col: int | None = None
    end_col: int | None = None

    @classmethod
    def of(cls, code: types.CodeType) -> UserLocation:
        """Returns the line on which a function begins."""
        return cls(code.co_filename, code.co_firstlineno, code.co_name)

    def __str__(self) -> str:
        return self._described(os.path.basename(self.filename))

    def with_folder(self) -> str:
        """Returns `/home/me/train.py:37 in step`."""
        return self._described(self.filename)

    def _described(self, name: str) -> str:
        # The name of a file may hold bytes that are not UTF-8.
        return f"{name.encode(errors='backslashreplace').decode()}:{self.lineno} in {self.function}"

    def source_line(self) -> str:
        """Returns the text of the line, without its newline; empty when the source is not available."""
        return linecache.getline(self.filename, self.lineno).rstrip("\n")

    def expression(self) -> str:
        """Returns the part of the line between the columns; the whole stripped line without columns."""
        line = self.source_line()
        if self.col is None or self.end_col is None:
            return line.strip()
        # Columns count UTF-8 bytes, as CPython stores them.
        return line.encode()[self.col : self.end_col].decode(errors="replace")

    def comment(self) -> str:
        """Returns `train.py:37 in step: x = y + 1`: one line without the folder, fit for a comment in any language.

        A backslash at the end is removed: it would continue a comment in C++.
        """
        return " ".join(f"{self}: {self.source_line()}".split()).rstrip(" :\\")


MOST_LINES = 12
"""The length of a message, without quoted text."""


@dataclass(frozen=True)
class Diagnostic:
    """A message to the user: what happened, where, why, and a fix."""

    #: The code of an entry in docs/errors.md.
    code: str
    #: The headline, in the user's words.
    what: str
    #: A sentence.
    why: str = ""
    #: Code or an action.
    fix: str = ""
    #: The remark after the carets.
    marker: str = ""
    where: UserLocation | None = None
    #: The text of an error of other code, such as a backend's, of any length.
    quoted: str = ""

    def at(self, where: UserLocation | None) -> Diagnostic:
        """Returns the same diagnostic at `where`, unless it already has a location."""
        return self if self.where is not None or where is None else replace(self, where=where)

    def render(self) -> str:
        """Returns the text that the user sees: at most 12 lines, without the quoted text."""
        head = f"{self.code} {self.what}"
        lines = [f"{head:<75} {self.where.with_folder()}" if self.where else head]
        lines += self._source_lines()
        lines += [f"  {text}" for text in self.why.splitlines()]
        *fix, last = self.fix.splitlines() or [""]
        more = f"More: python -m minidynamo explain {self.code}"
        ending = [*(f"  {text}" for text in fix), f"  {last}      {more}" if last else f"  {more}"]
        quoted = [f"  {text}" for text in self.quoted.splitlines()]
        return "\n".join([*lines[: MOST_LINES - len(ending)], *quoted, *ending])

    def _source_lines(self) -> list[str]:
        if self.where is None or not self.where.source_line().strip():
            return []
        line = self.where.source_line()
        rows = [f"    {self.where.lineno} | {line}"]
        if self.where.col is None or self.where.end_col is None:
            return rows
        raw = line.encode()
        start = len(raw[: self.where.col].decode(errors="replace"))
        width = max(1, len(self.where.expression()))
        gutter = " " * len(f"    {self.where.lineno} | ")
        rows.append(f"{gutter}{' ' * start}{'^' * width}  {self.marker}".rstrip())
        return rows


class MinidynamoError(Exception):
    """Base of all errors that minidynamo raises on purpose. `diagnostic` holds the parts of the message."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.diagnostic = diagnostic

    @property
    def code(self) -> str:
        """Returns the error code, for example ``"MD201"``."""
        return self.diagnostic.code

    def __str__(self) -> str:
        return self.diagnostic.render()

    def locate(self, where: UserLocation | None) -> None:
        """Adds a location, unless the error has one."""
        self.diagnostic = self.diagnostic.at(where)


_LINE = "minidynamo_line"
"""The attribute of an error of other code that holds the user's line."""


@contextlib.contextmanager
def located(where: UserLocation | None) -> Iterator[None]:
    """Adds a location to an error that the block raises, unless the error has one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MinidynamoError):
            error.locate(where)
        elif where is not None and line_of(error) is None:
            setattr(error, _LINE, where)
        raise


def line_of(error: BaseException | None) -> UserLocation | None:
    """Returns the user's line at which an error of other code, or its cause, was located; None if unknown."""
    while error is not None and not hasattr(error, _LINE):
        error = error.__cause__
    return getattr(error, _LINE, None)


class GraphBreak(MinidynamoError):
    """Capture cannot go past an instruction. Unwinds the tracer; users see it only in reports."""


class SkipFrame(GraphBreak):
    """A frame cannot be captured, not even in parts; it runs eagerly."""


class Unsupported(MinidynamoError):
    """A graph break where none is allowed (`fullgraph=True`)."""


class RecompileLimit(MinidynamoError):
    """A function has been compiled more often than `recompile_limit` allows."""


class RecompileRefused(MinidynamoError, RuntimeError):
    """A call that no compiled version fits, while the stance is "fail_on_recompile"; torch raises RuntimeError."""


class FrozenCallDiffers(MinidynamoError, RuntimeError):
    """A check of a frozen function found a guard that does not hold."""


class CodeCopied(MinidynamoError, RuntimeError):
    """A function was called after it got the code of a compiled function (`f.__code__ = g.__code__`)."""


class BackendError(MinidynamoError):
    """A backend raised; `__cause__` is the original exception."""


class KernelsUnavailable(BackendError):
    """This machine cannot build or load the kernels of a graph. The graph runs with torch's own kernels instead."""


class ToolchainMissing(KernelsUnavailable):
    """No C++ compiler was found, or Triton is not installed."""


class KernelBuildError(KernelsUnavailable):
    """A compiler refused a kernel that minidynamo wrote, or does not run, or the built library does not load."""


class ResultDiffers(BackendError):
    """An operator returned a result that differs from its fake implementation, for which the graph was compiled."""


class GraphRefused(BackendError):
    """The autograd stage cannot express a graph; nothing has been run. Backends run it operation by operation."""


class ComptimeError(MinidynamoError):
    """A comptime callback raised; `__cause__` is its exception. Nothing has been compiled or run."""


class InternalError(MinidynamoError):
    """minidynamo broke one of its own rules; please report it with the folder that the message names."""


class ArgumentError(MinidynamoError, TypeError):
    """An argument of a public function has the wrong name or type."""


class ConflictingArguments(ArgumentError, RuntimeError):
    """Two arguments of a public function exclude each other; torch raises RuntimeError for such a conflict."""


class InvalidCond(ArgumentError, RuntimeError):
    """An argument of `cond` has the wrong type or shape; torch raises RuntimeError for such arguments."""


class InvalidHook(ArgumentError):
    """A hook for saved tensors (a graph or marked with `inlineable_hook`) cannot be put into a compiled graph."""


class HookReturnsSubclass(InvalidHook, NotImplementedError):
    """A hook for saved tensors returns a subclass of torch.Tensor; torch raises NotImplementedError for such a hook."""


class DeclaredSizeFixed(MinidynamoError, ValueError):
    """A dimension was declared to vary, but the program works for one size only."""


class UnknownName(MinidynamoError, ValueError):
    """A name is not in the table it must come from: a backend, a mode, a config field, a log."""


# Precedes torch's message when an internal check fails: the check, its location, and a request to report the bug.
_TORCH_ASSERT_PREFIX = re.compile(r'^.*INTERNAL ASSERT FAILED at ".*?":\d+, please report a bug to PyTorch\.\s*')


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its `repr` if the text is empty."""
    line = (str(error).strip() or repr(error)).partition("\n")[0]
    return _TORCH_ASSERT_PREFIX.sub("", line) or "an internal check of torch failed"


def summary(error: BaseException) -> str:
    """Returns an error on one line, with its class."""
    return f"{type(error).__name__}: {first_line(error)}"


# Beginnings of names that open with a consonant but are spoken with a vowel, and the reverse.
_SPOKEN_WITH_A_VOWEL = re.compile(r"ndarray|[AEFHILMNORSX][A-Z]|(?!One|Eu)[AEIOaeio]|U(?:nin|n[^i]|pd)")


def an(noun: str) -> str:
    """Returns a noun, such as the name of a class, after its article: "an int", "a tuple", "an LSTM"."""
    return f"{'an' if _SPOKEN_WITH_A_VOWEL.match(noun) else 'a'} {noun}"


def counted(number: int, noun: str) -> str:
    """Returns `3 graphs`, `1 graph`, `2 misses`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``" Did you mean 'x'?"`` for the entry of `known` that is nearest to `name`, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f" Did you mean {match[0]!r}?" if match else ""
