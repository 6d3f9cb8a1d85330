"""Exceptions as values, breaks near handlers, uncaught exceptions, and guards on what raised."""

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter, assert_same_as_eager
from tests.end_to_end.programs import Programs, vector
from tests.exception_classes import Plain, ShapeError

programs = Programs()
test_same_as_eager = programs.test()


class Bag:
    size = 3


def checked(value, limit):
    if value > limit:
        raise ShapeError(limit, value)
    return value


def exception_values(error):
    return type(error), error.args, error.__dict__, str(error), error.__cause__, error.__context__, error.__traceback__


@programs(breaks=1)
class AnExceptionAsAValue:
    @programs()
    def never_raised(x):
        error = ShapeError(1, 2)
        error.extra = x + 1
        return error.extra, error.args, str(error), [Plain(), StopIteration(3).value]

    def raised_and_returned(x):
        y = x + 1
        try:
            raise ShapeError(1, 2)
        except ShapeError as error:
            kept = error
        return y * 2, kept, kept.__traceback__ is None, str(kept)

    def raised_and_stored(x):
        errors = []
        y = x + 1
        try:
            raise Plain("a")
        except Plain as error:
            errors.append(error)
        return y * 2, errors

    def traceback_is_read(x):
        y = x + 1
        try:
            raise Plain
        except Plain as error:
            return y + error.__traceback__.tb_lineno * 0, error.__traceback__ is None

    def live_at_a_later_break(x):
        y = x + 1
        try:
            raise Plain("a")
        except Plain as error:
            kept = error
        y = y * 2
        minidynamo.graph_break()
        print("here")
        return y - 1, str(kept)


def test_an_exception_that_was_not_raised_is_rebuilt():
    f = lambda x: (x + 1, ShapeError(1, 2), StopIteration(4), KeyError("a"))
    compiled = minidynamo.compile(f, backend=(counter := CompileCounter()))
    for expected, actual in zip(f(torch.ones(2))[1:], compiled(torch.ones(2))[1:]):
        assert exception_values(expected) == exception_values(actual)
    assert compiled(torch.ones(2))[2].value == 4
    assert counter.frame_count == 1


class Refused(OSError):
    def __init__(self, number, words):
        super().__init__(number, words)


@programs(breaks=1)
class WhatBreaks:
    def break_in_a_handler(x):
        y = x + 1
        try:
            raise Plain("a")
        except Plain as error:
            minidynamo.graph_break()
            print(error)
            y = y * 2
        return y

    @programs(breaks=2, graphs=2)
    def break_behind_a_handler(x):
        y = x + 1
        try:
            raise Plain("a")
        except Plain:
            y = y * 2
        minidynamo.graph_break()
        print("behind")
        y = y * 3
        minidynamo.graph_break()
        print("further")
        return y

    @programs(breaks=1, graphs=None)
    def error_of_an_operation(x):
        y = x + 1
        try:
            return y @ torch.ones(7, 7)
        except RuntimeError as error:
            return y * 2, str(error)

    @programs(breaks=2)
    def exception_group(x):
        y = x + 1
        found = []
        try:
            raise ExceptionGroup("both", [ValueError(1), KeyError(2)])
        except* ValueError as group:
            found.append(len(group.exceptions))
        except* KeyError as group:
            found.append(len(group.exceptions))
        return y * 2, found

    def one_exception_for_groups(x):
        y = x + 1
        found = []
        try:
            raise ValueError(1)
        except* ValueError as group:
            found.append(len(group.exceptions))
        return y * 2, found

    @programs(breaks=2)
    def class_that_cannot_be_made(x):
        y = x + 1
        try:
            raise Refused(2, "no such file")
        except OSError as error:
            return y * 2, error.errno


@programs(graphs=0, breaks=1)
class NobodyCatches:
    def nobody_catches(x):
        try:
            raise ShapeError(1, 2)
        finally:
            x = x + 1

    def another_class_is_caught(x):
        try:
            raise ShapeError(1, 2)
        except KeyError:
            return x + 1

    @programs()
    def expecting_what_is_no_exception(x):
        try:
            try:
                raise Plain
            except (KeyError, (Plain,)):
                return x
        except TypeError as error:
            return x + 1, str(error), type(error.__context__).__name__

    @programs(graphs=0, breaks=2)
    def raised_again_to_the_caller(x):
        try:
            checked(4, 3)
        except ShapeError as error:
            raise KeyError("outer") from error

    @programs(lambda: (torch.randn(4), []))
    def state_left_by_an_error(x, items):
        try:
            items.append(x + 1)
            raise Plain
        except Plain:
            items.append(2)
        return items

    @programs(lambda: (torch.randn(4), []), breaks=None, graphs=None)
    def state_left_by_an_uncaught_error(x, items):
        items.append(x + 1)
        try:
            items.append(x * 2)
            raise Plain("all")
        finally:
            items.append(3)


# The second call


@programs(*[lambda key=key: (vector(), {"a": 1}, key) for key in "bab"], graphs=2)
def guards_on_what_raised(x, table, key):
    try:
        return x + table[key]
    except KeyError:
        return x - 1


FULL_BAG = Bag()
FULL_BAG.weight = 5


@programs(*[lambda bag=bag: (vector(), bag) for bag in (Bag(), FULL_BAG, Bag())], graphs=2)
def guards_on_a_missing_attribute(x, bag):
    try:
        return x + bag.weight
    except AttributeError:
        return x - 1


def test_guards_on_classes_of_exceptions_and_their_methods(monkeypatch):
    class Told(Exception):
        def __str__(self):
            return "first"

    @minidynamo.compile(backend="eager")
    def f(x):
        try:
            raise Told
        except Expected as error:  # noqa: F821
            return x + 1, str(error)
        except Exception as error:
            return x + 2, str(error)

    monkeypatch.setitem(globals(), "Expected", Told)
    assert f(torch.ones(1)) == (2, "first")
    monkeypatch.setattr(Told, "__str__", lambda self: "second")
    assert f(torch.ones(1)) == (2, "second")
    monkeypatch.setitem(globals(), "Expected", KeyError)
    assert f(torch.ones(1)) == (3, "second")


def test_the_callers_exception_is_the_context_and_raised_again():
    @minidynamo.compile(backend="eager")
    def context(x):
        try:
            raise Plain
        except Plain as error:
            return x + 1, error.__context__

    @minidynamo.compile(backend="eager")
    def again(x):
        del x
        raise

    with pytest.raises(KeyError, match="outer"):
        try:
            raise KeyError("outer")
        except KeyError as outer:
            assert context(torch.ones(1))[1] is outer
            again(torch.ones(1))
    with pytest.raises(RuntimeError, match="No active exception"):
        again(torch.ones(1))


def test_guards_on_a_missing_global(monkeypatch):
    def f(x):
        try:
            return x + not_yet_there  # noqa: F821
        except NameError as error:
            return x - 1, str(error)

    compiled = minidynamo.compile(f, backend="eager")
    assert compiled(torch.ones(2))[1] == "name 'not_yet_there' is not defined"
    monkeypatch.setitem(globals(), "not_yet_there", 4)
    assert compiled(torch.ones(2)).tolist() == [5, 5]
    monkeypatch.delitem(globals(), "not_yet_there")
    assert compiled(torch.ones(2))[0].tolist() == [0, 0]
    monkeypatch.setattr("builtins.not_yet_there", 6, raising=False)
    assert compiled(torch.ones(2)).tolist() == [7, 7]


def test_traceback_is_pythons_own():
    def f(x):
        try:
            raise ShapeError(1, 2)
        finally:
            x = x + 1

    compiled = minidynamo.compile(f, backend="eager")
    for _ in range(2):
        with pytest.raises(ShapeError) as caught:
            compiled(torch.ones(1))
        assert caught.traceback[-1].lineno == f.__code__.co_firstlineno + 1


class Coded(Exception):
    def __init__(self, code, text="said"):
        super().__init__(text)
        self.code = code

    @property
    def words(self):
        return f"code {self.code}"


def takes(a, b, *, c, d=1):
    return a, b, c, d


class Simple:
    def __init__(self, a):
        self.a = a

    def method(self, b):
        return b


NOTHING, NUMBERS = None, [1]
REFUSED = {
    "indices": [
        *[lambda items=items: items[7] for items in ([1], (1,), "a", torch.Size([2]), range(1))],
        *[lambda: [].pop(7), lambda: [1].pop(7)],
    ],
    "arithmetic": [lambda: 1 // 0, lambda: 1 / 0, lambda: 1 % 0, lambda: divmod(1, 0), lambda: 2.0**10000],
    "numbers": [lambda: int("3"), lambda: int("x"), lambda: int(""), lambda: float("y")],
    "calls": [
        *[lambda: takes(), lambda: takes(1, 2), lambda: takes(1, 2, 3, c=4), lambda: takes(1, 2, c=3, e=4)],
        *[
            lambda: takes(1, a=2, b=3, c=4),
            lambda: Simple(),
            lambda: Simple(1).method(),
            lambda: Simple(1).method(2, 3),
        ],
        *[lambda: (lambda n: n)(), lambda: NOTHING(), lambda: Simple(1)(), lambda: NUMBERS()],
    ],
    "strict zips": [
        *[lambda: list(zip([1], [], strict=True)), lambda: list(zip([1], [1], [1, 2], strict=True))],
        *[lambda: list(zip([1], [1, 2], [1], strict=True)), lambda: list(zip([1], [1], [], strict=True))],
    ],
    "slices": [lambda: [1, 2][::0], lambda: (1, 2)[::0]],
}
UNFIT = [
    *[lambda: Simple(1) + 1, lambda: 1 - Simple(1), lambda: -Simple(1), lambda: Simple(1) < Simple(2)],
    *[lambda: Simple(1)[0], lambda: [1] + (2,), lambda: (1,) * 1.5, lambda: Simple(1) @ [1]],
]


@programs(lambda: (vector(), Coded(3)), lambda: (vector(), Coded(3, "other")), graphs=2)
class Refusals:
    def asked_from_outside(x, error):
        error.seen = True
        made = x * error.code, error.words, error.args, str(error)
        return *made, repr(error), isinstance(error, ValueError), vars(error)

    @programs(*[lambda name=name: (vector(), REFUSED[name]) for name in REFUSED], graphs=None)
    def what_is_said_of(x, acts):
        said = []
        for act in acts:
            try:
                said.append(act())
            except (TypeError, ValueError, LookupError, ArithmeticError) as error:
                said.append((type(error), str(error)))
        return x + 1, said

    @programs()
    def operands_that_do_not_fit(x):
        for act in UNFIT:
            try:
                act()
            except TypeError:
                x = x + 1
        return x


def test_LS_8_pop_raises_index_error():
    class Items(list):
        def append(self, item):
            super().append(item)

    def f(items, x):
        items.append(x + 1)
        return items.pop(7)

    assert_same_as_eager(f, lambda: (Items([1]), torch.ones(2)), calls=2)

    def caught(items, x):
        try:
            items.append(x + 1)
            items.pop(7)
        except IndexError as error:
            return str(error), x * 2

    assert_same_as_eager(caught, lambda: (Items([1]), torch.ones(2)), calls=2, graphs=1, breaks=0)


def test_CL_7_unassigned_closure_variables():
    def f(x):
        def read():
            try:
                return v
            except NameError as error:
                return str(error)

        early = read()
        v = x * 5
        late = read()
        del v
        return early, late, read()

    assert_same_as_eager(f, lambda: torch.ones(2), calls=2, graphs=1, breaks=0)

    def own(x):
        found = []
        v = x + 1
        function = lambda: v  # noqa: E731
        y = function()
        del v
        try:
            return v  # noqa: F821
        except UnboundLocalError as error:
            found.append(str(error))
        try:
            del v  # noqa: F821
        except NameError as error:
            found.append(type(error).__name__)
        try:
            return function()
        except NameError as error:
            found.append(str(error))
        v = 1
        return y, found

    assert_same_as_eager(own, lambda: torch.ones(2), calls=2, graphs=1, breaks=0)
