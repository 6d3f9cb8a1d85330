"""Exceptions with more state than their arguments and exception groups, which Python makes, and `sys.exc_info`."""

from __future__ import annotations

import sys

import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager, no_recompile
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Missing(OSError):
    advice = "look elsewhere"

    def __str__(self):
        return f"{self.strerror}: {self.advice}"


class MissingModule(ImportError):
    pass


@programs(breaks=None, graphs=None)
class MadeByPython:
    def what_the_system_says(x):
        try:
            raise OSError(2, "no such file", "a.txt")
        except FileNotFoundError as error:
            return x + error.errno, error.strerror, error.filename, error.filename2, error.args, str(error), repr(error)

    def an_exit(x):
        found = []
        for code in (3, None, "text"):
            try:
                raise SystemExit(code)
            except SystemExit as stop:
                found.append((stop.code, str(stop)))
        try:
            raise SystemExit
        except BaseException as stop:
            return x + 1, stop.code, stop.args, found

    def errors_of_texts_and_imports(x):
        try:
            raise UnicodeDecodeError("utf8", b"abc", 0, 1, "odd")
        except ValueError as error:
            found = error.encoding, error.object, error.start, error.end, error.reason, str(error)
        try:
            raise ImportError("no such module", name="a", path="b")
        except ImportError as error:
            found += error.name, error.path, error.msg, error.args
        try:
            raise SyntaxError("odd", ("a.py", 3, 4, "text"))
        except SyntaxError as error:
            found += error.lineno, error.offset, error.msg, error.filename
        return x + 1, found

    def classes_of_the_programs_own(x):
        found = []
        for make in (lambda: Missing(2, "none"), lambda: Missing("plain"), lambda: MissingModule("odd", name="a")):
            try:
                raise make()
            except OSError as error:
                found.append((type(error) is Missing, error.errno, error.args, str(error)))
            except ImportError as error:
                found.append((str(error), error.name))
        kept = Missing(5, "kept")
        kept.x = x
        return x + 1, found, kept

    def made_and_kept(x):
        name = "a" + "b"
        error = OSError(2, "no such file", name)
        return x + 1, error, error.args, error.filename is name, [SystemExit(3), ImportError("a", name="n")]

    def from_another_error(x):
        try:
            try:
                raise KeyError("a", 2)
            except KeyError as first:
                raise OSError(1, "b") from first
        except OSError as error:
            return x + 1, type(error.__cause__), error.__cause__.args, error.__context__ is error.__cause__

    def made_in_the_wrong_way(x):
        found = []
        for make in (lambda: UnicodeDecodeError("utf8"), lambda: ImportError("a", nothing=1)):
            try:
                raise make()
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    def with_a_tensor(x):
        y = x + 1
        try:
            raise OSError(2, y)
        except OSError as error:
            return y * 2, error.errno

    @programs(lambda: (vector(), 2), lambda: (vector(), 13), lambda: (vector(), 999), breaks=None, graphs=None)
    def numbers_from_outside(x, number):
        try:
            raise OSError(number, "said")
        except PermissionError:
            return x + 1
        except FileNotFoundError:
            return x + 2
        except OSError as error:
            return x + error.errno


@programs(breaks=None, graphs=None)
class ExceptionGroups:
    def a_group(x):
        try:
            raise ExceptionGroup("several", (ValueError(1), TypeError("a")))
        except ExceptionGroup as group:
            kinds = [type(error) for error in group.exceptions]
            return x + len(group.exceptions), group.message, kinds, str(group), repr(group), group.exceptions[0].args

    def a_kept_group_of_a_list(x):
        errors = [ValueError(1)]
        group = ExceptionGroup("a", errors)
        errors.append(TypeError(2))
        return x + 1, group, str(group), repr(group), len(group.exceptions)

    def parts_of_a_group(x):
        y = x + 1
        some, others = ExceptionGroup("a", (ValueError(1), TypeError(2))).split(ValueError)
        return y * 2, some.exceptions[0].args, others.exceptions[0].args


# The exception in flight


def handled():
    return sys.exc_info()[0], sys.exception()


@programs()
def asked_in_handlers(x):
    try:
        raise ValueError("a")
    except ValueError:
        kind, error, _ = sys.exc_info()
        found = [kind, str(error), handled()[1] is error]
        try:
            raise KeyError(1)
        except KeyError:
            found.append(handled()[0])
        found.append(handled()[0])
    return x + 1, found


def test_what_the_caller_handles_is_left_to_python():
    def asked(x):
        return x + 1, sys.exc_info()[0]

    compiled = minidynamo.compile(asked, backend="eager")
    assert compiled(torch.ones(2))[1] is None
    try:
        raise ValueError
    except ValueError:
        assert compiled(torch.ones(2))[1] is ValueError
        assert "in a caller of the compiled function" in compiled.breaks()
    with no_recompile():
        assert compiled(torch.ones(2))[1] is None
    assert_same_as_eager(asked, lambda: torch.ones(2), graphs=1, breaks=0)
