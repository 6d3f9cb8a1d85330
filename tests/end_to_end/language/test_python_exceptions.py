"""Whole programs that raise and catch: captured without a break unless the program needs Python's own exception.

PYTEST_DONT_REWRITE: the message of `assert` in these programs is Python's own.
"""

import functools
import json
import sys
import traceback

import torch

from tests.end_to_end.programs import Programs, two_vectors
from tests.exception_classes import Plain, ShapeError

programs = Programs()
test_same_as_eager = programs.test()


class Worded(Exception):
    def __str__(self):
        return f"worded: {self.args[0]}"


class OwnInit(Exception):
    def __init__(self, value):
        self.value = value


@programs()
class RaisedAndCaughtInOneFrame:
    def message_and_arguments(x):
        try:
            raise ValueError("no", 3)
        except ValueError as error:
            return x + 1, str(error), error.args, repr(error), f"{error}"

    def class_without_call(x):
        try:
            raise KeyError
        except KeyError as error:
            return x + 1, error.args, str(error)

    def custom_class_with_attributes(x):
        try:
            raise ShapeError((2, 3), tuple(x.shape))
        except ValueError as error:
            return x * len(error.expected), error.got, str(error), isinstance(error, ShapeError)

    def tensor_in_an_exception(x):
        try:
            raise OwnInit(x * 2)
        except OwnInit as error:
            y = error.value + error.args[0]
        return y

    def class_with_its_own_text(x):
        try:
            raise Worded("a")
        except Worded as error:
            return x + 1, str(error), f"{error}!"

    def else_and_finally(x):
        log = []
        for flag in (True, False):
            try:
                log.append("try")
                if flag:
                    raise Plain(flag)
            except Plain as error:
                log.append(error.args)
                x = x + 1
            else:
                log.append("else")
                x = x * 2
            finally:
                log.append("finally")
                x = x - 1
        return x, log

    def the_name_is_deleted(x):
        error = "before"
        try:
            raise Plain
        except Plain as error:  # noqa: F841
            y = x + 1
        try:
            return y, error
        except UnboundLocalError as unbound:
            return y, str(unbound)

    def tuple_of_classes(x):
        log = []
        for cls in (KeyError, IndexError, ZeroDivisionError):
            try:
                raise cls("it")
            except (KeyError, IndexError) as error:
                log.append(type(error).__name__)
            except ArithmeticError:
                log.append("arithmetic")
        return x + len(log), log

    def bare_except(x):
        try:
            raise Plain
        except:  # noqa: E722
            return x + 1

    def first_match_wins(x):
        try:
            raise ShapeError(1, 2)
        except KeyError:
            return x
        except ValueError:
            return x + 1
        except ShapeError:
            return x + 2

    def nested_handlers(x):
        log = []
        try:
            try:
                raise KeyError("inner")
            except IndexError:
                log.append("wrong")
            finally:
                log.append("inner finally")
                x = x + 1
        except KeyError as error:
            log.append(str(error))
        return x, log

    def raised_in_a_handler(x):
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904
        except ValueError as error:
            context = error.__context__
            return x + 1, str(error), str(context), type(context).__name__, error.__cause__, error.__suppress_context__

    def raised_from_another(x):
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError as error:
            same = error.__cause__ is error.__context__
            return x + 1, str(error.__cause__), same, error.__suppress_context__

    def raised_from_none(x):
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second") from None
        except ValueError as error:
            return x + 1, error.__cause__, str(error.__context__), error.__suppress_context__

    def raised_from_a_class(x):
        try:
            raise ValueError("second") from KeyError
        except ValueError as error:
            return x + 1, type(error.__cause__).__name__

    def raised_again(x):
        log = []
        try:
            try:
                raise Plain(1)
            except Plain as error:
                log.append(error.args)
                raise
        except Plain as error:
            log.append(error.args)
        return x + 1, log

    def raised_again_by_name(x):
        try:
            try:
                raise Plain(1)
            except Plain as error:
                raise error
        except Plain as error:
            return x + error.args[0]

    def the_same_exception_twice(x):
        kept = Plain("once")
        seen = []
        for _ in range(2):
            try:
                raise kept
            except Plain as error:
                seen.append(error is kept)
        return x + 1, seen

    def return_in_finally(x):
        def inner(v):
            try:
                raise Plain
            finally:
                return v + 1  # noqa: B012

        return inner(x)

    def break_and_continue(x):
        log = []
        for i in range(5):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
                if i == 2:
                    raise Plain(i)
                log.append(i)
            except Plain:
                log.append("caught")
                continue
            finally:
                log.append(("finally", i))
                x = x + 1
        return x, log

    def return_in_try_and_handler(x):
        def inner(v, flag):
            try:
                if flag:
                    raise Plain
                return v * 2
            except Plain:
                return v * 3
            finally:
                log.append(flag)

        log = []
        return inner(x, True), inner(x, False), log

    def loop_of_retries(x):
        tries = 0
        while True:
            try:
                tries += 1
                if tries < 4:
                    raise Plain(tries)
                break
            except Plain:
                x = x + 1
        return x, tries

    def asserts_with_and_without_a_message(x):
        try:
            assert x.shape[0] == 3, f"not {x.shape[0]}"
        except AssertionError as error:
            y, said = x + 1, str(error)
        try:
            assert x.dim() == 2
        except AssertionError as error:
            return y, said, error.args

    def raised_in_a_comprehension(x):
        def half(i):
            if i == 2:
                raise Plain(i)
            return x / (i + 1)

        try:
            return [half(i) for i in range(4)]
        except Plain as error:
            return x + error.args[0]


class Bag:
    size = 3


@programs()
class RaisedByPythonsOperationsOnConstants:
    def missing_keys(x):
        found = []
        for table in ({"a": 1}, {}):
            try:
                found.append(table["a"])
            except KeyError as error:
                found.append((str(error), error.args))
        try:
            {1}.remove((2, 3))
        except KeyError as error:
            found.append(error.args)
        try:
            {}.pop("k")
        except KeyError as error:
            found.append(error.args)
        try:
            {}.popitem()
        except KeyError as error:
            found.append(str(error))
        return x + len(found), found

    def attribute_of_nothing(x):
        try:
            return x + None.shape[0]
        except AttributeError as error:
            return x + 1, str(error)

    @programs(lambda: (torch.randn(4), Bag()))
    def attribute_that_is_missing(x, bag):
        try:
            return x + bag.weight
        except AttributeError as error:
            return x + bag.size, str(error)

    def adding_what_cannot_be_added(x):
        try:
            return x + (1 + "a")
        except TypeError:
            return x + 1

    def wrong_number_of_items(x):
        found = []
        for items in ((1, 2, 3), [1]):
            try:
                (first, second) = items
                found += [first, second]
            except ValueError as error:
                found.append(str(error))
        try:
            first, *rest, last = (1,)
            found += [first, rest, last]
        except ValueError as error:
            found.append(str(error))
        return x + 1, found

    def exhausted_iterator(x):
        items = iter([1])
        total = 0
        while True:
            try:
                total += next(items)
            except StopIteration as stop:
                return x + total, stop.value, stop.args

    def what_is_not_there(x):
        found = []
        operations = (
            *(lambda: [1].index(2), lambda: (1,).index(2), lambda: [1].remove(2), lambda: min([]), lambda: max(())),
            *(lambda: "abc".index("z"), lambda: functools.reduce(lambda a, b: a + b, [])),
        )
        for operation in operations:
            try:
                operation()
            except (ValueError, TypeError) as error:
                found.append(type(error).__name__)
        return x + 1, found

    @programs(breaks=1)
    def words_of_a_library_function(x):
        y = x + 1
        try:
            min([])
        except ValueError as error:
            return y * 2, str(error)

    def questions_to_modules(x):
        return x + 1, hasattr(torch, "no_such_name"), hasattr(torch, "compile"), getattr(functools, "no_such_name", 3)

    def unhashable_key(x):
        try:
            return {[1]: x}
        except TypeError as error:
            return x + 1, str(error)

    def length_of_a_number(x):
        try:
            return x + len(3)
        except TypeError as error:
            return x + 1, str(error)

    def looping_over_a_number(x):
        try:
            for i in 3:
                x = x + i
        except TypeError:
            return x + 1


def checked(value, limit):
    if value > limit:
        raise ShapeError(limit, value)
    return value


def through(value):
    log.append("in")
    try:
        return checked(value, 1)
    finally:
        log.append("out")


log = []


def default_of(function, default):
    try:
        return function()
    except (KeyError, ShapeError):
        return default


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        if x.dim() != 2:
            raise ShapeError(2, x.dim())
        return self.inner(x)


class Counter:
    def __init__(self):
        self.calls = []

    def step(self, value):
        self.calls.append(value)
        if value == 1:
            raise Plain(value)
        self.last = value


def failing(items, log):
    for item in items:
        log.append(item)
        yield item
    raise Plain("behind the last")


class Picky:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        if {self.value, other.value} == {1, 4}:
            raise Plain
        return self.value < other.value


class Several(KeyError, AttributeError):
    pass


@programs()
class ThroughFrames:
    def raised_in_a_callee(x):
        try:
            return x + checked(x.shape[0], 3)
        except ShapeError as error:
            return x * error.got

    def through_a_finally(x):
        del log[:]
        try:
            through(3)
        except ValueError as error:
            return x + 1, str(error), list(log)

    def caught_by_a_callee(x):
        a = default_of(lambda: {}["k"], x)
        b = default_of(lambda: checked(5, 3), a + 1)
        c = default_of(lambda: checked(2, 3), None)
        return a, b, c

    def recursion_that_unwinds(x):
        def down(depth, seen):
            try:
                if depth == 0:
                    raise Plain("bottom")
                down(depth - 1, seen)
            finally:
                seen.append(depth)

        seen = []
        try:
            down(3, seen)
        except Plain:
            return x + 1, seen

    @programs(lambda: (Model(), torch.randn(4)))
    def raised_in_a_module(model, x):
        try:
            return model(x)
        except ShapeError:
            return model(x[None])

    @programs(lambda: torch.randn(4, requires_grad=True))
    def grad_mode_comes_back(x):
        try:
            with torch.no_grad():
                y = x * 2
                raise Plain
        except Plain:
            return y, x * 3, torch.is_grad_enabled()

    @programs(two_vectors)
    def effects_before_the_error_stay(x, y):
        state = {"n": 0}
        items = []
        try:
            state["n"] = 1
            items.append(x + y)
            raise Plain
            items.append(0)
        except Plain:
            items.append(x - y)
            state["m"] = len(items)
        return state, items

    @programs(lambda: (torch.randn(4), Counter()))
    def effects_on_an_argument_stay(x, counter):
        for value in range(3):
            try:
                counter.step(value)
            except Plain:
                counter.failed = x * value
        return x + len(counter.calls)

    def what_an_iterator_gave_before_stays(x):
        log, extended, added, mapping, both = [], [0], [0], {"z": 0}, {0}
        updates = lambda: extended.extend(failing((1, 2), log)), lambda: added.__iadd__(failing((x + 1, 2), log))
        updates += lambda: mapping.update(failing((("a", 1), ("b", 2)), log)), lambda: both.update(failing((1, 2), log))
        for update in updates:
            try:
                update()
            except Plain as error:
                log.append(str(error))
        return extended, added, mapping, sorted(both), log

    def sorting_by_a_key_that_raises(x):
        def key(value):
            if value == 2:
                raise Plain
            return value

        items = [3, 1, 2]
        try:
            items.sort(key=key)
        except Plain:
            items.append("same order")
        return x + 1, items

    @programs(breaks=1)
    def sorting_what_cannot_be_compared(x):
        y = x + 1
        items = [Picky(value) for value in (5, 2, 4, 1, 3, 0, 6)]
        try:
            items.sort()
        except Plain:
            return y * 2, [item.value for item in items]

    def class_with_several_bases(x):
        try:
            raise Several("a")
        except AttributeError as error:
            return x + 1, str(error)

    @programs(breaks=None, graphs=None)
    def what_only_python_knows(x):
        found = []
        try:
            raise Plain("a")
        except Plain:
            found += [str(sys.exc_info()[1]), traceback.format_exc().splitlines()[-1]]
        return x + 1, found


class Found:
    __slots__ = ("empty",)


@programs()
class StateOfExceptionsInAdditionToTheirArguments:
    def fields_of_errors_that_python_raises(x):
        found, kept = [], Found()
        for obj, name in ((x, "no_such"), (kept, "no_such"), (kept, "empty"), (Found, "no_such"), (1, "no_such")):
            try:
                getattr(obj, name)
            except AttributeError as error:
                found += [str(error), error.name, error.obj is x, error.obj is kept, error.obj is Found, error.obj == 1]
        try:
            no_such_global  # noqa: B018
        except NameError as error:
            found += [str(error), error.name, error.args]
        try:
            del kept
            x = x + kept  # noqa: F821
        except UnboundLocalError as error:
            found += [str(error), error.name]
        return x + 1, found

    def fields_of_a_missing_module(x):
        try:
            import no_such_module.part  # noqa: F401, PLC0415
        except ModuleNotFoundError as error:
            return x + 1, str(error), repr(error), error.args, error.name, error.path, error.msg

    def fields_of_errors_of_text(x):
        found = []
        try:
            "caf\xe9".encode("ascii")
        except UnicodeEncodeError as error:
            found += [str(error), error.args, error.object, error.start, error.end, hasattr(error, "reason")]
        try:
            b"\xff\xfe".decode("utf8")
        except ValueError as error:
            found += [str(error), getattr(error, "encoding", None)]
        return x + 1, found

    def attributes_of_errors_of_libraries(x):
        found = []
        for text in ("{", "[1, 2"):
            try:
                json.loads(text)
            except ValueError as error:
                found += [str(error), error.msg, hasattr(error, "pos")]
                found += [getattr(error, "lineno", None), sorted(vars(error))]
                error.doc = 5
                del error.pos
                found += [error.doc, hasattr(error, "pos")]
        return x + len(found), found

    @programs(breaks=1)
    def words_behind_a_changed_field(x):
        y = x + 1
        try:
            "caf\xe9".encode("ascii")
        except UnicodeEncodeError as error:
            error.reason = "because"
            return y, error.reason, str(error)

    @programs(breaks=None, graphs=None)
    def notes(x):
        error = Plain("a")
        error.add_note("first")
        try:
            raise error
        except Plain as caught:
            caught.add_note("second")
            return x + 1, caught.__notes__, caught is error


class Lazy:
    def __getattr__(self, name):
        if name.startswith("x"):
            return name
        raise AttributeError(f"no {name}")

    @property
    def broken(self):
        raise AttributeError("broken")

    @property
    def failing(self):
        raise KeyError("failing")


@programs(lambda: (torch.randn(4), Lazy()))
def attributes_by_code(x, lazy):
    found = [hasattr(lazy, "xa"), hasattr(lazy, "a"), getattr(lazy, "b", 5), getattr(lazy, "xb", 6)]
    try:
        lazy.c
    except AttributeError as error:
        found.append(str(error))
    try:
        lazy.failing
    except KeyError as error:
        found.append(str(error))
    return x + 1, found
