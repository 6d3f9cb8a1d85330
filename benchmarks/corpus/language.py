"""Programs about the language: control flow, functions, comprehensions, generators, exceptions, formatting.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import math
from functools import partial, reduce

import torch

from benchmarks.coverage_case import Corpus, matrix, vector

programs = Corpus()


def with_number(number):
    return lambda: (torch.randn(4), number)


@programs()
def accumulate_in_a_loop(x):
    total = torch.zeros_like(x)
    for step in range(5):
        total += x * step
    return total / 5


@programs(with_number(3), with_number(4))
def power_by_repetition(x, n):
    result = x
    for _ in range(n - 1):
        result = result * x
    return result


@programs(with_number(0.5), with_number(-0.5))
def branch_on_a_number(x, scale):
    if scale > 0:
        return x * scale
    elif scale == 0:
        return x
    return -x * scale


@programs(lambda: (torch.randn(4), None), lambda: (torch.randn(4), torch.randn(4)))
def optional_bias(x, bias):
    y = x * 2
    if bias is not None:
        y = y + bias
    return y


@programs(with_number("relu"), with_number("tanh"))
def choose_by_name(x, name):
    table = {"relu": torch.relu, "tanh": torch.tanh, "none": lambda t: t}
    return table[name](x)


@programs(with_number("gelu"), with_number("silu"))
def choose_with_getattr(x, name):
    return getattr(torch.nn.functional, name)(x)


@programs(lambda: [torch.randn(4) for _ in range(3)], lambda: [torch.randn(4) for _ in range(4)])
def stack_of_a_list(xs):
    return torch.stack([x.mean() for x in xs])


@programs(lambda: {"a": torch.randn(4), "b": torch.randn(4)})
def dictionary_of_tensors(batch):
    return {key: value * 2 for key, value in batch.items() if key != "b"} | {"sum": sum(batch.values())}


@programs()
def nested_function_with_closure(x):
    scale = x.abs().max()

    def normalize(t):
        return t / (scale + 1e-6)

    return normalize(x) + normalize(x * 2)


@programs()
def counter_with_nonlocal(x):
    calls = 0

    def layer(t):
        nonlocal calls
        calls += 1
        return t * calls

    for _ in range(3):
        x = layer(x)
    return x, calls


@programs()
def recursion(x):
    def halve(t, depth):
        return t if depth == 0 else halve(t / 2, depth - 1)

    return halve(x, 4)


@programs()
def fibonacci_of_tensors(x):
    a, b = x, x + 1
    for _ in range(6):
        a, b = b, a + b
    return a


@programs()
def unpack_with_star(x):
    first, *middle, last = x.unbind()
    return first + last, middle


@programs(matrix)
def unpack_a_shape(x):
    b, d = x.shape
    return x.reshape(b * d).view(d, b), b, d


@programs()
def while_with_break(x):
    n = 0
    while True:
        x = x * 1.5
        n += 1
        if n >= 4:
            break
    else:
        x = x * 0
    return x


@programs()
def for_else(x):
    for i in (1, 3, 5):
        if i % 2 == 0:
            break
    else:
        x = x + 10
    return x


@programs()
def walrus_in_a_condition(x):
    if (n := x.shape[0]) > 3:
        return x / n
    return x


@programs(with_number(("scale", 2)), with_number(("shift", 3)))
def match_on_a_tuple(x, command):
    match command:
        case ("scale", factor):
            return x * factor
        case ("shift", amount):
            return x + amount
        case _:
            return x


@programs(lambda: (torch.randn(4), {"op": "add", "value": 2}), lambda: (torch.randn(4), {"op": "neg"}))
def match_on_a_dictionary(x, config):
    match config:
        case {"op": "add", "value": value}:
            return x + value
        case {"op": "neg"}:
            return -x
    return x


@programs()
def lambda_with_default(x):
    fns = [lambda t, k=k: t * k for k in range(4)]
    return sum(f(x) for f in fns)


@programs()
def sum_over_a_generator(x):
    return sum(x * i for i in range(4))


@programs()
def generator_function(x):
    def powers(t, n):
        p = torch.ones_like(t)
        for _ in range(n):
            yield p
            p = p * t

    return torch.stack(list(powers(x, 4)))


@programs()
def yield_from(x):
    def inner(t):
        yield t
        yield t + 1

    def outer(t):
        yield from inner(t)
        yield from inner(t * 2)

    return list(outer(x))


@programs()
def generator_with_send(x):
    def running_mean():
        total, count, mean = 0, 0, None
        while True:
            value = yield mean
            total = total + value
            count += 1
            mean = total / count

    g = running_mean()
    next(g)
    g.send(x)
    return g.send(x * 3)


@programs()
def zip_and_enumerate(x):
    out = []
    for i, (a, b) in enumerate(zip(x, x.flip(0))):
        out.append(a * i + b)
    return torch.stack(out)


@programs()
def zip_strict(x):
    return [a * b for a, b in zip([x, x + 1], [2, 3], strict=True)]


@programs()
def reversed_range(x):
    for i in reversed(range(1, 4)):
        x = x * i - 1
    return x


@programs()
def sorted_with_key(x):
    layers = [("b", 3), ("a", 1), ("c", 2)]
    for _, factor in sorted(layers, key=lambda pair: pair[1], reverse=True):
        x = x * factor + 1
    return x


@programs()
def minimum_and_maximum_with_keys(x):
    sizes = {"small": 1, "large": 10}
    return x * max(sizes.values()) + min(sizes, key=sizes.get).__len__()


@programs()
def any_and_all(x):
    shapes = [x.shape, (4,), (4,)]
    if all(s == shapes[0] for s in shapes) and not any(len(s) > 1 for s in shapes):
        return x + 1
    return x - 1


@programs()
def map_and_filter(x):
    evens = list(filter(lambda n: n % 2 == 0, range(6)))
    return list(map(lambda n: x * n, evens))


@programs()
def reduce_over_layers(x):
    return reduce(lambda acc, f: f(acc), [torch.sin, torch.cos, torch.tanh], x)


@programs()
def partial_application(x):
    scale = partial(torch.mul, other=3)
    clamp = partial(torch.clamp, min=-1, max=1)
    return clamp(scale(x))


def varied(*args, scale=1, **kwargs):
    return sum(args) * scale + sum(kwargs.values())


@programs()
def arguments_of_every_kind(x):
    parts = [x, x + 1]
    extra = {"shift": 2, "more": x}
    return varied(*parts, x, scale=2, **extra)


def only_positional(a, b, /, c, *, d=2):
    return a * b + c * d


@programs()
def positional_and_keyword_only(x):
    return only_positional(x, 2, c=x) + only_positional(x, 1, x, d=3)


@programs()
def chained_comparison(x):
    if 0 < x.dim() <= 2 != 3:
        return x * 2
    return x


@programs()
def conditional_expression(x):
    return (x if x.shape[0] % 2 == 0 else -x) * (1 if x.is_floating_point() else 0)


@programs(matrix)
def slices(x):
    return x[1:], x[:, ::2], x[-1], x[..., :2], x[None, :, 1:-1], x[::2, 1]


@programs()
def slice_objects(x):
    window = slice(1, 3)
    return x[window] + x[slice(None, 2)], window.start, window.indices(4)


@programs()
def augmented_assignments(x):
    y = x.clone()
    y += 1
    y *= 2
    y -= x
    y /= 3
    y **= 2
    return y


@programs()
def delete_names_and_items(x):
    cache = {"a": x, "b": x + 1}
    del cache["a"]
    values = [1, 2, 3, 4]
    del values[1:3]
    y = x * 2
    del x
    return y, cache, values


@programs()
def f_strings(x):
    name = f"layer_{x.shape[0]:03d}_{x.dim()!r}"
    return x + len(name), name, f"{3.14159:.2f}", "{:>5}|{}".format("a", 2), "%s-%d" % ("b", 3)


@programs()
def string_methods(x):
    parts = "encoder.layers.0.weight".split(".")
    index = int(parts[2])
    return x * (index + 1), ".".join(parts[:-1]), "weight".upper().startswith("W"), parts[-1].replace("w", "v")


@programs()
def assertions(x):
    assert x.dim() == 1, f"expected a vector, got {x.dim()} dimensions"
    assert x.shape[0] == 4
    return x + 1


@programs()
def caught_key_error(x):
    options = {"a": 1}
    try:
        value = options["b"]
    except KeyError:
        value = 5
    return x * value


@programs()
def caught_own_exception(x):
    class Stop(Exception):
        pass

    def check(n):
        if n > 2:
            raise Stop(n)
        return n

    total = 0
    for i in range(5):
        try:
            total += check(i)
        except Stop as e:
            return x + total + e.args[0]
    return x


@programs()
def caught_type_error(x):
    def add(a, b):
        return a + b

    try:
        return add(x)
    except TypeError:
        return add(x, 1)


@programs()
def caught_wrong_keyword(x):
    def layer(t, scale=1):
        return t * scale

    try:
        return layer(x, factor=2)
    except TypeError as e:
        return layer(x, scale=2), "factor" in str(e)


@programs()
def caught_attribute_error(x):
    try:
        return x.not_an_attribute
    except AttributeError:
        return x + 1


@programs()
def caught_index_error(x):
    items = [x]
    try:
        return items[3]
    except IndexError as e:
        return items[0], str(e)


@programs()
def caught_value_error(x):
    try:
        n = int("three")
    except ValueError:
        n = 3
    return x * n


@programs()
def caught_zero_division(x):
    try:
        scale = 1 / (x.shape[0] - 4)
    except ZeroDivisionError:
        scale = 0
    return x * scale


@programs()
def try_finally(x):
    log = []
    try:
        log.append("start")
        return x * 2, log
    finally:
        log.append("end")


@programs()
def caught_and_raised_again(x):
    def risky():
        try:
            raise ValueError("inner")
        except ValueError as e:
            raise RuntimeError("outer") from e

    try:
        risky()
    except RuntimeError as e:
        return x + 1, type(e.__cause__).__name__
    return x


@programs()
def stop_iteration_by_hand(x):
    it = iter([1, 2])
    total = 0
    while True:
        try:
            total += next(it)
        except StopIteration:
            break
    return x * total


@programs()
def next_with_default(x):
    found = next((n for n in (2, 4, 6) if n > 3), None)
    return x * found, next(iter([]), "nothing")


@programs()
def set_comprehension(x):
    sizes = {len(name) for name in ("a", "bb", "cc", "ddd")}
    return x * len(sizes), 2 in sizes


@programs()
def nested_comprehension(x):
    return torch.stack([torch.stack([x * i + j for j in range(2)]) for i in range(3)])


@programs()
def dictionary_merge(x):
    defaults = {"scale": 1, "shift": 0}
    options = {**defaults, "shift": 2}
    options |= {"scale": 3}
    return x * options["scale"] + options["shift"]


@programs()
def dictionary_views(x):
    d = {"a": 1, "b": 2, "c": 3}
    shared = d.keys() & {"a", "c"}
    return x * sum(d[k] for k in sorted(shared)), list(d.items())[-1], ("b", 2) in d.items()


@programs()
def setdefault_and_pop(x):
    groups = {}
    for i, name in enumerate(["a", "b", "a"]):
        groups.setdefault(name, []).append(x * i)
    last = groups.pop("b")
    return groups, last, groups.get("z", "none")


@programs()
def integer_arithmetic(x):
    n = x.shape[0]
    return x * (n // 3) + n % 3 - (n << 2) + (n & 6) + divmod(n, 3)[1] + abs(-n) + pow(n, 2) + round(2.5)


@programs()
def float_arithmetic(x):
    scale = 1.0 / math.sqrt(x.size(-1))
    return x * scale + math.pi * math.exp(-1) - math.floor(2.7) + float("0.5") + math.log2(8)


@programs()
def booleans(x):
    flags = [True, False, True]
    return x * sum(flags) if flags.count(True) > 1 and not flags[1] else x


@programs()
def global_constant(x):
    return x * EPSILON + len(NAMES)


EPSILON = 1e-3
NAMES = ("a", "b")


@programs()
def import_inside(x):
    import torch.nn.functional as F
    from math import sqrt

    return F.relu(x) / sqrt(x.shape[0])


def traced(fn):
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


@programs()
def decorated_inside(x):
    @traced
    def layer(t):
        return t * 2

    return layer(x)


@programs()
def compose_functions(x):
    def compose(*fns):
        def run(t):
            for f in fns:
                t = f(t)
            return t

        return run

    return compose(torch.sin, lambda t: t * 2, torch.cos)(x)


@programs()
def return_a_closure(x):
    y = x * 2

    def later(z):
        return y + z

    return later(x), later


@programs()
def list_methods(x):
    xs = [x]
    xs.append(x + 1)
    xs.extend([x + 2, x + 3])
    xs.insert(0, x - 1)
    last = xs.pop()
    xs.reverse()
    return xs, last, len(xs), [3, 1, 2].index(1)


@programs()
def list_arithmetic(x):
    sizes = [1] * 3 + [2]
    sizes[1:3] = [5, 6, 7]
    return x * sum(sizes), sizes[::-1], 5 in sizes


@programs()
def tuples(x):
    pair = (x, x + 1)
    triple = pair + (x * 2,)
    return triple[-1], triple[:2], len(triple), (1, 2) < (1, 3)


@programs()
def sort_a_list_in_place(x):
    keys = ["b", "a", "c"]
    keys.sort()
    return {k: x * i for i, k in enumerate(keys)}


@programs()
def global_counter(x):
    global CALLS  # noqa: PLW0603
    CALLS = 0
    CALLS += 1
    return x + CALLS


CALLS = 0


@programs()
def identity_and_membership(x):
    y = x
    return x is y, x is not None, None in [1, None], type(x) is torch.Tensor, isinstance(x, torch.Tensor), x + 1


@programs()
def context_manager_class(x):
    class Scope:
        depth = 0

        def __enter__(self):
            Scope.depth += 1
            return self

        def __exit__(self, *exc):
            Scope.depth -= 1
            return False

    with Scope() as outer, Scope():
        y = x * outer.depth
    return y


@programs()
def ellipsis_and_none(x):
    return x[..., None, None].expand(4, 2, 3), x[None].shape


@programs()
def default_mutable_argument(x):
    def collect(t, seen=None):
        seen = [] if seen is None else seen
        seen.append(t)
        return seen

    return collect(x), collect(x, [x])


@programs()
def unpack_in_a_call(x):
    size = (2, 2)
    return x.view(*size), torch.zeros(*size, dtype=x.dtype), max(*[1, 2, 3])


@programs()
def swap_by_index(x):
    xs = [x, x + 1, x + 2]
    xs[0], xs[2] = xs[2], xs[0]
    return xs


@programs(lambda: (torch.randn(4), [1, 2, 3]), lambda: (torch.randn(4), [4, 5, 6]))
def list_of_numbers(x, ns):
    for n in ns:
        x = x * n
    return x


@programs(lambda: (torch.randn(4), [[1, 2], [3]]), lambda: (torch.randn(4), [[1, 2], [4]]))
def flatten_nested_lists(x, nested):
    flat = [n for row in nested for n in row]
    return x + sum(flat)


@programs()
def print_nothing_of_a_tensor(x):
    y = x + 1
    if False:
        print(y)
    return y


@programs()
def iterate_over_a_tensor(x):
    total = 0
    for value in x:
        total = total + value * 2
    return total


@programs(matrix)
def loop_over_rows(x):
    return torch.cat([row.softmax(0) for row in x])


@programs()
def range_membership(x):
    r = range(0, 10, 2)
    return x * r[2] + len(r), 4 in r, list(r[1:3])


@programs()
def bytes_and_encoding(x):
    return x + len("abc".encode()), b"ab" + b"c", bytes([1, 2]).hex()


@programs()
def complex_numbers(x):
    z = complex(1, 2)
    return x * z.real + abs(z.conjugate()) + z.imag


@programs()
def underscore_and_ignored(x):
    _, y, *_ = (1, x, 2, 3)
    return y


@programs()
def try_else_finally(x):
    try:
        y = x * 2
    except RuntimeError:
        y = x
    else:
        y = y + 1
    finally:
        y = y - 0.5
    return y


@programs()
def isinstance_dispatch(x):
    def apply(v):
        if isinstance(v, (list, tuple)):
            return type(v)(apply(t) for t in v)
        if isinstance(v, dict):
            return {k: apply(t) for k, t in v.items()}
        return v * 2

    return apply([x, (x, {"a": x})])


@programs()
def callable_check(x):
    layers = [torch.relu, 2, torch.sigmoid]
    for layer in layers:
        x = layer(x) if callable(layer) else x * layer
    return x


@programs(vector)
def strings_in_loops(x):
    for name in "sin cos tanh".split():
        x = getattr(x, name)()
    return x


@programs()
def hash_and_id(x):
    seen = {id(x): "x"}
    return x + 1, id(x) in seen, hash((1, 2)) == hash((1, 2))


@programs()
def unbound_then_set(x):
    for i in range(3):
        if i == 0:
            y = x
        else:
            y = y + x
    return y


@programs()
def deep_call_chain(x):
    def a(t):
        return b(t) + 1

    def b(t):
        return c(t) * 2

    def c(t):
        return t.sin()

    return a(x)


@programs()
def type_of_results(x):
    y = x.mean()
    return type(y).__name__, y.ndim == 0, type([1]) == list, x + 1


@programs()
def exec_time_constant_table(x):
    table = [(i, j) for i in range(3) for j in range(i)]
    for i, j in table:
        x = x + i * j
    return x
