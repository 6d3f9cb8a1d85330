"""Programs about the standard library and numpy next to tensors.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import bisect
import collections.abc
import contextlib
import contextvars
import datetime
import functools
import heapq
import inspect
import itertools
import json
import logging
import math
import numbers
import operator
import os
import os.path
import pathlib
import random
import re
import string
import sys
import textwrap
import time
import typing
import warnings
from fractions import Fraction

import numpy as np
import torch

from benchmarks.coverage_case import Corpus, matrix

programs = Corpus()
logger = logging.getLogger(__name__)


@programs()
def itertools_chain_and_islice(x):
    values = itertools.chain([1, 2], (3,), itertools.islice(itertools.count(10), 2))
    return x * sum(values)


@programs()
def itertools_product_and_combinations(x):
    pairs = list(itertools.combinations([x, x + 1, x + 2], 2))
    grid = [(i, j) for i, j in itertools.product(range(2), repeat=2)]
    return sum(a * b for a, b in pairs), len(grid), list(itertools.permutations([1, 2]))


@programs()
def itertools_accumulate(x):
    return list(itertools.accumulate([x, x, x])), list(itertools.accumulate([1, 2, 3], operator.mul, initial=1))


@programs()
def itertools_groupby(x):
    groups = {k: len(list(g)) for k, g in itertools.groupby("aabbbc")}
    return x * groups["b"]


@programs()
def itertools_pairwise_and_zip_longest(x):
    steps = [b - a for a, b in itertools.pairwise([1, 4, 9])]
    filled = list(itertools.zip_longest([1, 2, 3], ["a"], fillvalue="z"))
    return x * sum(steps), filled


@programs()
def itertools_others(x):
    s = itertools.starmap(pow, [(2, 3), (3, 2)])
    t = itertools.takewhile(lambda n: n < 3, range(9))
    d = itertools.dropwhile(lambda n: n < 7, range(9))
    r = itertools.repeat(x, 2)
    c = itertools.compress("abcd", [1, 0, 1, 0])
    f = itertools.filterfalse(lambda n: n % 2, range(4))
    cycle = itertools.cycle([1, 2])
    return list(s), list(t), list(d), list(r), list(c), list(f), [next(cycle) for _ in range(3)]


@programs()
def itertools_tee_and_batched(x):
    a, b = itertools.tee(iter([1, 2, 3]))
    next(b)
    return x * sum(i * j for i, j in zip(a, b))


@programs()
def operator_module(x):
    get = operator.itemgetter("a", "b")
    a, b = get({"a": x, "b": 2})
    shape = operator.attrgetter("shape")(x)
    return operator.add(a, b), operator.mul(x, 2), shape, operator.methodcaller("sin")(x), operator.not_(0)


@programs()
def functools_module(x):
    add = functools.partial(operator.add, 1)
    total = functools.reduce(operator.mul, [x, x, x])
    compare = functools.cmp_to_key(lambda a, b: b - a)
    return add(x), total, sorted([1, 3, 2], key=compare)


@programs()
def math_module(x):
    n = x.shape[0]
    return (
        x * math.sqrt(n) + math.ceil(n / 3) + math.log(n) + math.gcd(12, n) + math.prod([1, 2, 3]),
        math.isclose(0.1 + 0.2, 0.3),
        math.inf > 1,
        math.comb(5, 2),
        math.factorial(4),
        math.copysign(1, -0.0),
        math.hypot(3, 4),
    )


@programs()
def random_floats(x):
    random.seed(1)
    return x * random.random() + random.uniform(0, 1)


@programs()
def random_integers(x):
    random.seed(2)
    return x * random.randint(1, 6) + random.randrange(10)


@programs()
def random_choice(x):
    random.seed(3)
    return getattr(torch, random.choice(["sin", "cos"]))(x)


@programs()
def random_shuffle(x):
    random.seed(4)
    order = list(range(4))
    random.shuffle(order)
    return x[order], random.sample(range(10), 2)


@programs()
def random_branch(x):
    random.seed(5)
    if random.random() < 0.5:
        return x + 1
    return x - 1


@programs()
def own_random_generator(x):
    rng = random.Random(7)
    return x * rng.random() + rng.randint(0, 9) + rng.gauss(0, 1)


@programs()
def random_layer_drop(x):
    random.seed(6)
    for _ in range(4):
        if random.uniform(0, 1) < 0.5:
            continue
        x = x * 2
    return x


@programs()
def regular_expressions(x):
    match = re.match(r"layer\.(\d+)\.(\w+)", "layer.3.weight")
    return x * int(match.group(1)), match.group(2), re.sub(r"\d", "#", "a1b2")


@programs()
def json_round_trip(x):
    config = json.loads('{"scale": 2, "names": ["a"]}')
    return x * config["scale"], json.dumps({"a": 1})


@programs()
def paths(x):
    return x + 1, os.path.join("a", "b.txt"), os.path.splitext("model.pt")[1], os.path.basename("/a/b")


@programs()
def pathlib_paths(x):
    p = pathlib.PurePosixPath("a") / "b.txt"
    return x + 1, p.suffix, p.name


@programs()
def environment_variable(x):
    return x * 2 if os.environ.get("NO_SUCH_VARIABLE") is None else x


@programs()
def environment_flag(x):
    if os.getenv("NO_SUCH_FLAG", "0") == "1":
        return x * 2
    return x


@programs()
def heap_queue(x):
    heap = []
    for key in (3, 1, 2):
        heapq.heappush(heap, key)
    return x * heapq.heappop(heap), heapq.nsmallest(1, heap)


@programs()
def bisection(x):
    edges = [0, 10, 20]
    bisect.insort(edges, 15)
    return x * bisect.bisect_left(edges, 12), edges


@programs()
def time_measurement(x):
    start = time.perf_counter()
    y = x * 2
    elapsed = time.perf_counter() - start
    return y, elapsed >= 0


@programs()
def time_of_day(x):
    return x + 1, time.time() > 0


@programs()
def dates(x):
    day = datetime.date(2024, 2, 28) + datetime.timedelta(days=2)
    return x * day.day, day.isoformat()


@programs()
def date_arithmetic(x):
    a = datetime.datetime(2024, 1, 1, 12)
    b = datetime.datetime(2024, 1, 2)
    return x * (b - a).total_seconds(), a < b


state = contextvars.ContextVar("state", default=2)


@programs()
def context_variable(x):
    token = state.set(5)
    y = x * state.get()
    state.reset(token)
    return y + state.get()


@programs()
def log_messages(x):
    logger.debug("shape %s", x.shape)
    return x + 1


@programs()
def warnings_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x + 1
    return y


@programs()
def warn_inside(x):
    if x.dim() != 1:
        warnings.warn("a vector is expected", stacklevel=2)
    return x + 1


@programs()
def a_warning_is_given(x):
    warnings.warn("deprecated", DeprecationWarning, stacklevel=2)
    return x + 1


@programs()
def inspect_signature(x):
    def layer(t, scale=2):
        return t * scale

    parameters = inspect.signature(layer).parameters
    return layer(x), "scale" in parameters, parameters["scale"].default


@programs()
def inspect_questions(x):
    return x + 1, inspect.isfunction(math.sqrt), inspect.isclass(torch.nn.Linear), callable(torch.sin)


@programs()
def abstract_classes(x):
    def flatten(v):
        if isinstance(v, collections.abc.Mapping):
            return [t for k in sorted(v) for t in flatten(v[k])]
        if isinstance(v, collections.abc.Sequence) and not isinstance(v, str):
            return [t for item in v for t in flatten(item)]
        return [v]

    return flatten({"b": [x, x + 1], "a": (x * 2,)}), isinstance(3, numbers.Number)


@programs()
def string_module(x):
    return x + 1, string.ascii_lowercase[:3], textwrap.dedent("  a"), string.Template("$a").substitute(a=1)


@programs()
def fractions_and_decimals(x):
    return x * float(Fraction(1, 3) + Fraction(1, 6))


@programs()
def contextlib_module(x):
    with contextlib.ExitStack() as stack:
        if x.dim() == 1:
            stack.enter_context(torch.no_grad())
        y = x * 2
    with contextlib.redirect_stdout(None):
        y = y + 1
    return y


@programs()
def python_version(x):
    if sys.version_info >= (3, 8):
        return x + 1
    return x


@programs()
def torch_version(x):
    if int(torch.__version__.split(".")[0]) >= 2:
        return x + 1
    return x


@programs()
def system_limits(x):
    return x + 1, sys.maxsize > 0, sys.float_info.eps < 1, sys.platform


@programs()
def typing_questions(x):
    hints = typing.get_origin(list[int]), typing.get_args(dict[str, int])
    return x + 1, hints[0] is list, len(hints[1])


@programs()
def numpy_scalars(x):
    return x * float(np.sqrt(2.0)) + np.pi


@programs()
def numpy_constant_array(x):
    window = np.hanning(4)
    return x * torch.from_numpy(window).to(x.dtype)


@programs()
def numpy_of_a_tensor(x):
    a = x.numpy()
    return torch.from_numpy(np.sin(a) + 1)


@programs(lambda: (np.arange(4.0),), lambda: (np.arange(4.0) + 2,))
def numpy_argument(a):
    return np.sum(a * 2), a.mean(), np.clip(a, 0, 2)


@programs(lambda: (np.arange(4.0), torch.randn(4)))
def numpy_argument_and_tensor(a, x):
    return torch.as_tensor(a) + x


@programs(lambda: (torch.randn(4), np.float32(2.0)), lambda: (torch.randn(4), np.float32(3.0)))
def numpy_number_argument(x, scale):
    return x * scale


@programs(lambda: (torch.randn(4), np.int64(2)), lambda: (torch.randn(4), np.int64(3)))
def numpy_integer_argument(x, n):
    return x[: int(n)] * n


@programs()
def numpy_linspace_schedule(x):
    for rate in np.linspace(0, 0.5, 3):
        x = x * (1 - float(rate))
    return x


@programs()
def numpy_dtype_questions(x):
    return x + 1, np.dtype("float32").itemsize, np.float32 is np.dtype("f4").type


@programs()
def numpy_random_choice(x):
    rng = np.random.RandomState(0)
    return x * float(rng.rand())


@programs(matrix)
def numpy_round_trip(x):
    a = x.detach().cpu().numpy()
    b = np.concatenate([a, a * 2], axis=0).mean(axis=0)
    return torch.tensor(b)


@programs(lambda: (np.random.RandomState(0).rand(3, 4),))
def numpy_statistics(a):
    centered = a - a.mean(axis=0, keepdims=True)
    cov = centered.T @ centered / (len(a) - 1)
    return cov, np.linalg.norm(cov), cov.argmax()


@programs(lambda: (np.random.RandomState(0).rand(5, 2), np.random.RandomState(1).rand(3, 2)))
def numpy_nearest_centers(points, centers):
    distances = ((points[:, None, :] - centers[None]) ** 2).sum(-1)
    return np.argmin(distances, axis=1), np.where(distances > 0.5, 0.0, distances)


@programs()
def copy_of_containers(x):
    import copy

    a = {"x": [x]}
    b = copy.copy(a)
    b["y"] = 1
    return a, b


@programs()
def pprint_and_repr(x):
    return x + 1, repr([1, "a", None, (2.5,)]), str({"a": (1,)}), ascii("é")


@programs()
def hash_of_text(x):
    import hashlib

    return x + 1, hashlib.md5(b"abc").hexdigest()[:4]


@programs()
def struct_and_base64(x):
    import base64

    return x + 1, base64.b64encode(b"abc")


@programs()
def uuid_like_names(x):
    name = "-".join(["run", str(len("abc")), "%02d" % 3])
    return x + 1, name.split("-")


@programs()
def statistics_module(x):
    import statistics

    return x * statistics.mean([1, 2, 3]) + statistics.median([1, 5, 2])


@programs()
def queue_like_deque(x):
    q = collections.deque()
    q.extend([x, x + 1])
    q.rotate(1)
    return q.pop(), q.popleft()


@programs()
def enum_of_strings(x):
    from enum import StrEnum

    class Kind(StrEnum):
        A = "a"

    return x + 1, Kind.A == "a", Kind("a").name


@programs()
def thread_local_state(x):
    return x + 1, LOCAL.depth


import threading  # noqa: E402

LOCAL = threading.local()
LOCAL.depth = 3

LOCK = threading.Lock()


@programs()
def lock_held(x):
    with LOCK:
        return x + 1


@programs()
def tree_map(x):
    from torch.utils import _pytree as pytree

    doubled = pytree.tree_map(lambda t: t * 2, {"a": x, "b": [x, (x,)]})
    leaves, spec = pytree.tree_flatten(doubled)
    return pytree.tree_unflatten([t + 1 for t in leaves], spec)
