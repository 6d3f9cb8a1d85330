import functools

import pytest

from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def scale(x, by=2):
    """Scale."""
    return x * by


@programs()
def partials(x):
    f = functools.partial(functools.partial(scale, by=3), x)
    return f(), f.func is scale, len(f.args), f.keywords, functools.partial(int, base=2)("101")


def log(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


@programs()
def wraps(x):
    wrapped = log(scale)
    twice = log(wrapped)
    return (
        wrapped(x),
        twice(x, by=3),
        twice.__name__,
        twice.__wrapped__ is wrapped,
        wrapped.__wrapped__ is scale,
        wrapped.__doc__,
    )


@programs(breaks=1, graphs=1)
def update_wrapper_of_a_real_function_breaks(x):
    y = x + 1
    functools.update_wrapper(scale, scale, assigned=(), updated=())
    return y


@programs()
def bound_methods(x):
    xs = []
    add = xs.append
    add(x + 1)
    up = "a".upper
    join = ", ".join
    return xs, up(), join(["a", "b"]), list(map(str.upper, ["p", "q"])), list(map("{}!".format, [1]))


@programs()
def unbound_methods(x):
    xs = [1]
    list.append(xs, x)
    return xs, str.upper("a"), dict.get({"a": 1}, "a"), list.index([1, 2], 2), list.__len__(xs), x + 1
