"""Functions with every construct in which a frame can be cut, with arguments; simple and deterministic."""

# ruff: noqa: B023, C416, E731, F821, PLC0415, RET, SIM, B
from __future__ import annotations

import contextlib
from collections import namedtuple

Point = namedtuple("Point", "x y")
log: list[object] = []
setting = 3


class Recorder(contextlib.AbstractContextManager):
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, traceback):
        log.append(("exit", self.name, kind))
        return self.swallow


class Base:
    def __init__(self, k):
        self.k = k

    def scale(self, x):
        return x * self.k


class Child(Base):
    __match_args__ = ("k",)

    def scale(self, x):
        return super().scale(x) + 1

    def scale_later(self, x):
        later = lambda: self.k + x
        return super().scale(x) + later() + super().scale(1)

    @property
    def broken(self):
        raise AttributeError("no such thing")


def fail(x):
    raise ValueError(x)


def arithmetic(a, b, *rest, scale=2, **more):
    total = a + b * scale - (a // b) % 7
    total += sum(rest)
    total **= 2
    flags = not a, a is b, a is not None, a in rest, b not in rest, -a, ~b
    return total, flags, sorted(more.items()), f"{a!r:>5}|{b:{scale}}|{rest}"


def conditionals(x, y):
    z = x if x > y else y
    if (x and y) or z is None:
        z += 1
    elif x is None:
        return "none"
    while z > 0 and x < 100:
        z -= 2
        if z == 3:
            continue
        if z == 1:
            break
    else:
        z = "else"
    assert x is not None, "message"
    return z, (w := x + 1), w, x < y < 10, x == y != z


def loops(xs, n):
    total = []
    for i, (a, *b) in enumerate(xs):
        for j in range(n):
            if j == a:
                break
            total.append((i, j, b))
        else:
            total.append("all")
    for k in {"p": 1, "q": 2}.items():
        total.extend(k)
    return total


def plain_loops(rewards, ends, limit):
    total, returns = 0.0, []
    for reward, end in zip(rewards, ends):
        if end:
            total = 0.0
        total = reward + 0.5 * total
        returns.insert(0, total)
    for value in returns:
        if value > limit:
            break
        total += value
    for round_ in range(2):
        for value in rewards:
            if value == 9:
                continue
            total += value
        else:
            total += 100
        try:
            for divisor in ends:
                total += 1 // (divisor + round_)
        except ZeroDivisionError:
            continue
    for value in returns:
        if value == limit:
            return value, total
    return reward, value, round_, total, returns


def half_bound_after_a_loop(xs):
    for x in xs:
        if x:
            late = x
        early = x
    else:
        found = "late" in locals()
    del early
    for x in xs:
        early = x
    return late, early, found, (lambda: x)()


def comprehensions(xs, n):
    squares = [x * n for x in xs if x != n]
    pairs = {x: [y for y in range(x)] for x in xs}
    unique = {x % 2 for x in xs}
    lazy = sum(x + n for x in xs)
    calls = [f() for f in [lambda: x + n for x in xs]]
    return squares, pairs, unique, lazy, calls, [x for x in xs], n


def shadowing(x):
    def inner(ys):
        return [x * 2 for x in ys], x

    return inner([1, 2]), [x for x in [x, x]], x


def closures(x):
    count = 0

    def add(k):
        nonlocal count
        count += k + x
        return count

    x += 1
    first = add(1)
    del x
    x = first
    return add(2), count, first


def free(x):
    def inner(y):
        nonlocal x
        x = x + y
        return lambda z=y: (x, y, z)

    return inner


def handlers(xs):
    out = []
    for x in xs:
        try:
            out.append(10 // x)
        except ZeroDivisionError as e:
            out.append(type(e).__name__)
            continue
        except (TypeError, ValueError):
            out.append("type")
        else:
            out.append("fine")
        finally:
            out.append("finally")
        out.append("after")
    return out


def returns_in_finally(x):
    try:
        try:
            return fail(x) if x else "zero"
        finally:
            log.append("inner")
    except ValueError as e:
        log.append(str(e))
        return "caught"
    finally:
        log.append("outer")


def uncaught(x):
    try:
        fail(x)
    except KeyError:
        return "never"
    finally:
        log.append("cleanup")


def with_regions(x):
    with Recorder("a") as a, Recorder("b"):
        with Recorder("c", swallow=True):
            if x:
                fail(x)
            log.append("not reached")
        for i in range(3):
            with Recorder(i):
                if i == 1:
                    break
        if x == 2:
            return a
    return "end", i


def calls(f, args, kwargs):
    first = f(*args, **kwargs)
    second = f(1, *args, b=3, **kwargs)
    third = f(1, b=2)
    text = ", ".join(str(v) for v in args).upper().split(sep=",", maxsplit=1)
    merged = {**kwargs, "z": [*args, 1], "f": (*args, *kwargs)}
    return first, second, third, text, merged, max(args, key=lambda v: -v)


def matching(value):
    match value:
        case Point(x=0, y=y):
            return "point", y
        case Child(k):
            return "child", k
        case [1, *rest] if rest:
            return "list", rest
        case {"key": found, **others}:
            return "dict", found, others
        case "a" | "b":
            return "letter"
        case _:
            return "other"


def mutation(xs, d, obj):
    xs[0] = 5
    xs[1:2] = [7, 8]
    del xs[-1]
    d["n"] = d.pop("m", 0)
    del d["n"]
    obj.k += 1
    obj.extra = xs[::2]
    del obj.extra
    a, b, *c = xs
    a, b = b, a
    a, b, c = b, c, a
    x = y = a
    return xs, d, obj.k, a, b, c, x, y


def global_state(x):
    global setting
    before = setting
    setting = x
    import math as m
    from os import path

    del m
    result = setting, path.basename("a/b")
    setting = before
    return result


def unbound(flag):
    if flag:
        value = 1
    try:
        return value
    except UnboundLocalError as e:
        return str(e)


def attribute_errors(obj):
    try:
        obj.broken.more()
    except AttributeError as e:
        return str(e)


def reads_locals(a, b):
    c = a + b
    del a
    return sorted(locals().items()), c


def groups(x):
    try:
        if x:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        log.append(len(e.exceptions))
    except* KeyError:
        log.append("key")
    return "done"


def defines(x):
    def documented(a: int, *, b: str = x) -> float:
        return a, b, x

    class Local(Base):
        z = x

        def method(self):
            return self.k + x

    return documented(1), Local(x).method(), Local.z, documented.__annotations__


def builds(a, b):
    return (
        [1, 2, 3, a],
        (a, b, *[1, 2]),
        {1, 2, a},
        {"a": a, "b": {a: b}},
        {"a": 1, "c": b},
        "abc"[a:],
        [1, 2, 3][a:b],
        [1, 2, 3, 4][a:b:1],
        slice(a, b),
        lambda: 0,
    )[:-1]


def many_locals(x):
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = x
    b0, b1, b2, b3, b4, b5, b6, b7 = a0, a1 + 1, a2 + 2, a3, a4, a5, a6, a7 + 7
    c0 = [v for v in (b0, b1, b2, b3)]
    keep = lambda: (c0, b7)
    return keep(), b0 + b1 + b2 + b3 + b4 + b5 + b6 + b7


def no_arguments():
    return [setting]


def only_cells():
    return lambda: late


CASES = [
    (arithmetic, (7, 2, 3, 4), {"k": 1, "scale": 3}),
    (arithmetic, (7, 2), {}),
    (conditionals, (1, 2), {}),
    (conditionals, (9, 2), {}),
    (conditionals, (0, 8), {}),
    (conditionals, (5, 5), {}),
    (loops, ([(1, 2), (5, 6, 7)], 3), {}),
    (plain_loops, ([1, 2, 9], [1, 0, 3], 9.0), {}),
    (plain_loops, ([1, 2, 9], [1, -1, 3], 1.0), {}),
    (plain_loops, ([4, 2], [1, 1], 50.0), {}),
    (half_bound_after_a_loop, ([0, 1, 0],), {}),
    (half_bound_after_a_loop, ([0, 0],), {}),
    (half_bound_after_a_loop, ([],), {}),
    (comprehensions, ([1, 2, 3], 2), {}),
    (shadowing, (4,), {}),
    (closures, (4,), {}),
    (free(1), (2,), {}),
    (handlers, ([1, 0, "x", 5],), {}),
    (returns_in_finally, (0,), {}),
    (returns_in_finally, (1,), {}),
    (uncaught, (1,), {}),
    (with_regions, (0,), {}),
    (with_regions, (1,), {}),
    (with_regions, (2,), {}),
    (calls, (lambda *a, **k: (a, k), (1, 2), {"c": 4}), {}),
    (matching, (Point(0, 2),), {}),
    (matching, (Child(3),), {}),
    (matching, ([1, 2, 3],), {}),
    (matching, ({"key": 1, "other": 2},), {}),
    (matching, ("b",), {}),
    (matching, (None,), {}),
    (Child.scale, (Child(3), 2), {}),
    (Child.scale_later, (Child(3), 2), {}),
    (mutation, ([1, 2, 3, 4, 5], {"m": 1}, Base(2)), {}),
    (global_state, (9,), {}),
    (unbound, (True,), {}),
    (unbound, (False,), {}),
    (attribute_errors, (Child(1),), {}),
    (reads_locals, (1, 2), {}),
    (groups, (0,), {}),
    (groups, (1,), {}),
    (defines, (2,), {}),
    (builds, (1, 2), {}),
    (many_locals, (1,), {}),
    (no_arguments, (), {}),
]
