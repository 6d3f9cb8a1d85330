import contextlib
import threading
import warnings

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, leaf

programs = Programs()
test_same_as_eager = programs.test()


@torch.no_grad()
def without_gradient(x):
    return x * 2


class Level:
    depth = 0

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        self.log.append(("in", self.name))
        return self.name

    def __exit__(self, *error):
        self.log.append(("out", self.name, error[0] is None))


@contextlib.contextmanager
def noted(log):
    log.append("in")
    yield len(log)
    log.append("out")


@programs()
class Cases:
    @programs(leaf)
    def nested_grad_modes(x):
        with torch.no_grad():
            a = x + 1
            with torch.enable_grad():
                b = x * 2
            c = a * 2
        return a, b, c, torch.is_grad_enabled()

    @programs(leaf)
    def grad_mode_by_a_flag(x):
        with torch.set_grad_enabled(x.shape[0] > 10):
            y = x * 2
        return y, x * 3

    @programs(leaf)
    def grad_mode_of_a_called_function(x):
        def inner(v):
            with torch.no_grad():
                return v * 2

        return inner(x) + x

    @programs(leaf)
    def grad_mode_as_decorator(x):
        return without_gradient(x) + x

    @programs(leaf, breaks=None, graphs=None)
    def break_inside_a_grad_mode(x):
        with torch.no_grad():
            y = x * 2
            minidynamo.graph_break()
            print(y.shape)
            z = y + 1
        return z, x * 3, torch.is_grad_enabled()

    def nullcontext(x):
        with contextlib.nullcontext(3) as n, contextlib.nullcontext():
            y = x * n
        return y

    def several_of_the_user(x):
        log = []
        with Level(log, "a") as a, Level(log, "b") as b:
            y = x + len(a + b)
            with Level(log, "c"):
                y = y * 2
        return y, log

    def leaving_by_return(x):
        log = []

        def inner(v):
            for i in range(3):
                with Level(log, i):
                    if i == 1:
                        return v + i
            return v

        return inner(x), log

    @programs(breaks=None, graphs=None)
    def break_inside_one_of_the_user(x):
        log = []
        with Level(log, "a"):
            y = x + 1
            minidynamo.graph_break()
            print(len(log))
            y = y * 2
        return y, log

    def exception_inside_one_of_the_user(x):
        log = []
        try:
            with Level(log, "a"):
                y = x + 1
                raise ValueError("no")
        except ValueError as error:
            log.append(str(error))
        return y, log

    @programs(breaks=None, graphs=None)
    def inference_mode(x):
        with torch.inference_mode():
            y = x * 2
        return y.is_inference(), x + 1

    @programs(lambda: torch.randn(4, 4), breaks=None, graphs=None)
    def autocast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y, y.dtype, x + 1

    def made_by_contextmanager(x):
        log = []
        with noted(log) as n:
            y = x + n
        return y, log

    @programs(breaks=None, graphs=None)
    def seed_inside(x):
        y = x + 1
        torch.manual_seed(3)
        return y + torch.rand(4)

    @programs(breaks=None, graphs=None)
    def parameter_made_inside(x):
        p = torch.nn.Parameter(torch.ones(4))
        return (x * p).sum().detach()


class Guard:
    """Records the arguments of its `__exit__`, and may swallow the exception."""

    def __init__(self, log, name, swallows=False):
        self.log, self.name, self.swallows = log, name, swallows

    def __enter__(self):
        self.log.append(("in", self.name))
        return self

    def __exit__(self, kind, error, traceback):
        seen = (kind and kind.__name__, error and str(error), traceback is None)
        self.log.append(("out", self.name, *seen))
        return self.swallows


class RaisesOnEntry:
    def __enter__(self):
        raise KeyError("entry")

    def __exit__(self, *error):
        return True


class RaisesOnExit:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        raise IndexError("exit")


class OnlyEntry:
    def __enter__(self):
        return self


@contextlib.contextmanager
def watched(log, swallows=False):
    log.append("in")
    try:
        yield len(log)
    except KeyError as error:
        log.append(str(error))
        if not swallows:
            raise
    finally:
        log.append("out")


@contextlib.contextmanager
def translated():
    try:
        yield
    except KeyError as error:
        raise ValueError("translated") from error


class Resource:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


class Scaled(contextlib.ContextDecorator):
    scale = 1

    def __enter__(self):
        self.scale = 3

    def __exit__(self, *error):
        self.scale = 1


scaled = Scaled()


@scaled
def multiplied(x):
    return x * scaled.scale


@programs()
class ExceptionsAndContextlib:
    context_decorator = lambda x: multiplied(x) + scaled.scale

    def swallowed(x):
        log = []
        with Guard(log, "a", True):
            x = x + 1
            raise ValueError("no")
        return x * 2, log

    def seen_by_two_and_caught(x):
        log = []
        try:
            with Guard(log, "a"), Guard(log, "b"):
                x = x + 1
                raise ValueError("no")
        except ValueError as error:
            log.append(str(error))
        return x, log

    def swallowed_by_the_outer(x):
        log = []
        with Guard(log, "a", True), Guard(log, "b"):
            {}["k"]
        return x + 1, log

    def leaving_a_loop(x):
        log = []
        for i in range(4):
            with Guard(log, i, True):
                if i == 1:
                    continue
                if i == 3:
                    break
                if i == 2:
                    raise ValueError(i)
                x = x + i
        return x, log

    def entry_raises(x):
        log = []
        try:
            with Guard(log, "a"), RaisesOnEntry():
                x = x + 1
        except KeyError as error:
            log.append(str(error))
        return x * 2, log

    def exit_raises(x):
        found = []
        for flag in (True, False):
            try:
                with RaisesOnExit():
                    if flag:
                        raise KeyError("block")
            except IndexError as error:
                found += [str(error), str(error.__context__) if flag else None]
        return x + 1, found

    def what_is_no_manager(x):
        found = []
        only = OnlyEntry()
        for value in (3, only):
            try:
                with value:
                    x = x + 1
            except TypeError as error:
                found.append(str(error))
        return x * 2, found

    @programs(lambda: torch.randn(4, requires_grad=True))
    def grad_mode_behind_an_error(x):
        try:
            with torch.no_grad(), Guard([], "a"):
                y = x * 2
                raise ValueError
        except ValueError:
            z = x * 3
        return y, z, torch.is_grad_enabled()

    @programs(graphs=0, breaks=1)
    def nobody_swallows(x):
        with Guard([], "a"):
            x = x + 1
            raise ValueError("no")

    def suppress(x):
        with contextlib.suppress(ValueError, KeyError):
            x = x + 1
            {}["a"]
            x = x * 2
        with contextlib.suppress(ValueError):
            x = x - 1
        return x

    def thrown_into_a_generator(x):
        log = []
        try:
            with watched(log) as n:
                x = x + n
                raise KeyError("k")
        except KeyError as error:
            log.append(("caught", str(error)))
        with watched(log, True) as n:
            x = x + n
            raise KeyError("k")
        try:
            with watched(log):
                raise StopIteration
        except StopIteration:
            log.append("stop")
        return x, log

    def contextmanager_as_decorator(x):
        log = []

        @watched(log)
        def inner(v):
            return v * 2

        return inner(x) + inner(x), log

    def error_of_another_class(x):
        try:
            with translated():
                raise KeyError("k")
        except ValueError as error:
            return x + 1, str(error), str(error.__cause__)

    def exit_stack(x):
        log = []
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Guard(log, "a"))
            stack.enter_context(watched(log))
            stack.callback(log.append, "callback")
            x = x + 1
        return x, log, first.name

    def exit_stack_with_an_error(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Guard(log, "a"))
            stack.enter_context(Guard(log, "b", True))
            stack.enter_context(watched(log))
            x = x + 1
            raise ValueError("v")
        return x, log

    def exit_stack_that_is_given_up(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Guard(log, "a"))
            kept = stack.pop_all()
        log.append("behind")
        kept.close()
        return x + 1, log

    def closing(x):
        with contextlib.closing(Resource()) as resource:
            x = x + 1
        try:
            with contextlib.closing(resource):
                raise ValueError
        except ValueError:
            x = x * 2
        return x, resource.closed


lock = threading.Lock()


@programs(breaks=None, graphs=None)
class BreaksInOpenManagers:
    @programs(breaks=1, graphs=2)
    def break_before_an_error_is_swallowed(x):
        log = []
        with Guard(log, "a", True):
            y = x + 1
            minidynamo.graph_break()
            print("inside")
            y = y * 2
            raise ValueError("no")
        y = y * 3
        return y, log

    @programs(breaks=2, graphs=3)
    def break_in_a_generators_block(x):
        log = []
        with watched(log) as n:
            y = x + n
            minidynamo.graph_break()
            print("inside")
            y = y * 2
        return y * 3, log

    def break_in_an_exit_stack(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Guard(log, "a"))
            y = x + 1
            minidynamo.graph_break()
            print("inside")
            y = y * 2
        return y * 3, log

    def locked(x):
        with lock:
            y = x + 1
            held = lock.locked()
        return y * 2, held, lock.locked()

    def caught_warnings(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = x + 1
            warnings.warn("careful", stacklevel=1)
        return y * 2, [str(warning.message) for warning in found]


# The second call


def test_guards_on_the_manager(monkeypatch):
    def f(x, guard):
        with guard:
            x = x + 1
            raise ValueError("no")
        return x * 2

    log = []
    first, second = Guard(log, "a", True), Guard(log, "b", True)
    compiled = minidynamo.compile(f, backend="eager")
    assert compiled(torch.ones(1), first).item() == compiled(torch.ones(1), second).item() == 4
    assert log == [entry for name in "ab" for entry in (("in", name), ("out", name, "ValueError", "no", False))]
    second.swallows = False
    with pytest.raises(ValueError, match="no"):
        compiled(torch.ones(1), second)
    monkeypatch.setattr(Guard, "__exit__", lambda self, *error: True)
    assert compiled(torch.ones(1), second).item() == 4
    del log[:]
    monkeypatch.setattr(Guard, "__enter__", lambda self: log.append("entered"))
    assert compiled(torch.ones(1), second).item() == 4
    assert log == ["entered"]


def test_methods_of_the_manager_itself_do_not_count():
    class Quiet:
        def __enter__(self):
            return 1

        def __exit__(self, *error):
            return None

    quiet = Quiet()
    quiet.__exit__ = quiet.__enter__ = None

    def f(x):
        with quiet as n:
            return x + n

    assert minidynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(1)).item() == 2
