"""Functions that are defined, decorated, bound, called with every kind of argument, and super(); decorators around
compiled, disabled and allowed functions."""

import functools

import torch

import minidynamo
from tests.end_to_end.histories import Histories, vector
from tests.end_to_end.programs import Programs, leaf

programs = Programs()
test_same_as_eager = programs.test()


def deco(fn):
    @functools.wraps(fn)
    def inner(*a, **k):
        return fn(*a, **k) + 1

    return inner


@deco
def decorated(x):
    return x * 2


def with_arg(n):
    def d(fn):
        inner = lambda v: fn(v) * n
        return inner

    return d


class Base:
    def __init__(self, k):
        self.k = k

    def go(self, v):
        return v * self.k

    @classmethod
    def make(cls, k):
        return cls(k)

    @staticmethod
    def st(v):
        return v + 1

    @property
    def pr(self):
        return self.k + 1


class Child(Base):
    def __init__(self, k):
        super().__init__(k + 1)

    def go(self, v):
        return super().go(v) + 1

    @classmethod
    def make(cls, k):
        return super().make(k)

    @property
    def pr(self):
        return super().pr * 10

    def old(self, v):
        return super(Child, self).go(v)

    def viacls(self, v):
        return __class__.__name__, super(__class__, self).go(v)

    def stat(self, v):
        return super().st(v)

    def lam(self, v):
        return (lambda: super(Child, self).go(v))()

    def store(self, v):
        s = super()
        return s.go(v)


class Grand(Child):
    def go(self, v):
        return super().go(v) * 2


@programs()
class Cases:
    uses_decorated = lambda x: decorated(x)

    def kwdefaults(x):
        def f(a, *, b=2, c):
            return a * b + c

        return f(x, c=1), f(x, b=5, c=2), f.__kwdefaults__["b"], f.__defaults__

    def annotations_returned(x):
        def f(a: int, b: "str" = 3) -> float:
            return a * b

        return x + 1, f

    def attrs_returned(x):
        def f():
            return x

        f.tag = x + 1
        f.__name__ = "other"
        f.__doc__ = "doc"
        return f

    def decorates_inside(x):
        @deco
        def f(v):
            "doc"
            return v * 3

        return f(x), f.__name__, f.__doc__, f.__wrapped__(x)

    def decorated_arg(x):
        @with_arg(3)
        def f(v):
            return v + 1

        return f(x)

    def stacked(x):
        @with_arg(2)
        @deco
        def f(v):
            return v + 1

        return f(x)

    def recursion(x):
        def fact(n):
            return 1 if n == 0 else n * fact(n - 1)

        return x * fact(5)

    def mutual(x):
        even = lambda n: True if n == 0 else odd(n - 1)
        odd = lambda n: False if n == 0 else even(n - 1)
        return x * even(4)

    def supers(x):
        c = Child(2)
        return c.go(x), c.old(x), c.viacls(x), c.stat(x), c.lam(x), c.store(x), c.pr, Child.make(5).k, Grand(1).go(x)

    def params(x):
        def f(a, b, /, c, d=4, *args, e, f=6, **kw):
            return a * b + c + d + sum(args) + e + f + sum(kw.values())

        return f(x, 1, 2, e=5), f(x, 1, c=2, e=1, z=3), f(x, 1, 2, 3, 4, 5, e=0, g=1), f(*(x, 1), **{"c": 2, "e": 3})

    def nonlocal_deep(x):
        n = 0

        def a():
            def b():
                nonlocal n
                n += 1
                return n

            return b() + b()

        return x * a(), n

    def cell_arg(x):
        def f(v, k):
            g = lambda: v * k
            k = k + 1
            return g()

        return f(x, 2)

    def loop_cells(x):
        fs = []
        for i in range(3):
            f = lambda j=i: x * (i + j)
            fs.append(f)
        return [f() for f in fs]

    def partials(x):
        f = functools.partial(lambda a, b, c=1: a * b + c, x, c=5)
        return f(3), f(3, c=1), f.func is not None, f.args[0] is x, f.keywords

    def method_refs(x):
        f = x.add
        g = torch.Tensor.mul
        h = [].append
        s = "a,b".split
        return f(1), g(x, 2), s(","), list(map(str.upper, "ab"))

    def lambda_ret(x):
        y = x + 1
        return lambda z=2, *, k=3: y * z * k

    def returned_counter(x):
        n = 0

        def inc():
            nonlocal n
            n += 1
            return n

        inc()
        return x + n, inc

    def two_share(x):
        n = [0]
        v = 1

        def a():
            nonlocal v
            v += 1
            return v

        b = lambda: (v, n)
        a()
        return x * v, a, b

    @programs(breaks=None, graphs=None)
    def class_in_closure(x):
        factor = 2

        class Scale:
            def __call__(self, v):
                return v * factor

        return Scale()(x) + 1

    def func_cmp(x):
        f = lambda: 1
        g = f
        return f is g, f == g, f != (lambda: 1), {f: 1}[f], x + 1

    @programs(lambda: ([slice(1, 2), int], torch.ones(3)), breaks=1, graphs=2)
    def annotations_that_are_computed(values, x):
        def scaled(v: values.pop(), n: values.pop() = 2):
            return v * n

        y = x + 1
        minidynamo.graph_break()
        return scaled(y), scaled.__annotations__


def test_attributes_that_are_no_names_arrive():
    def program(x):
        f = lambda: x
        setattr(f, "class", 3)
        setattr(f, "two words", 2)
        return f

    made = minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(1))
    assert vars(made) == {"class": 3, "two words": 2}


SCALE = 3


def scale(x, by=2, *, plus=0):
    return x * by + plus


def collect(*args, **kwargs):
    return args, kwargs


bound = functools.partial(scale, by=4)


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


@logged
def decorated_for_calls(x):
    """Doubles."""
    return x * 2


@programs()
class Calls:
    star_arguments = lambda x: (collect(x, 1, a=2), collect(*[x, 1], b=3), collect(), scale(*(x,), by=7))
    nested_calls = lambda x: scale(scale(scale(x), 3), plus=scale(1))
    global_values = lambda x: x * SCALE
    partial_from_outside = lambda x: (bound(x), bound(x, plus=1))
    decorated_function = lambda x: (
        decorated_for_calls(x),
        decorated_for_calls.__name__,
        decorated_for_calls.__doc__,
    )

    @programs(leaf)
    def positional_keyword_and_default(x):
        return scale(x), scale(x, 3), scale(x, by=4), scale(x, plus=1), scale(by=5, x=x, plus=2)

    def several_results(x):
        f = lambda v: (v + 1, v - 1)
        a, b = f(x)
        return a * b, f(x)[0]

    @programs(graphs=0)
    def function_attributes(x):
        return x, scale.__name__, scale.__defaults__, scale.__code__.co_argcount, callable(scale), callable(3)

    @programs(lambda: (torch.ones(2), torch.relu), lambda: (torch.ones(2), torch.tanh), graphs=2, recompiles=1)
    def function_argument(x, fn):
        return fn(x) + 1

    def reduce_and_sort_with_functions(x):
        total = functools.reduce(lambda a, b: a + b, [x, x * 2, 1])
        return total, sorted([3, 1, 2], key=lambda v: -v)

    def function_returned(x):
        def make(n):
            add = lambda v: v + n
            return add

        return make(2)(x), make(3)(x)

    @programs(breaks=1, graphs=0)
    def wrong_arguments_raise(x):
        return scale(x, 1, 2)

    def default_made_while_tracing(x):
        f = lambda v, scale=x * 2, extra=(): (v + scale, extra)
        return f(x), f(x, 1, [2])


histories = Histories()
test_decorated_programs_are_the_same_as_eager = histories.test()


def doubling(log):
    """Returns a decorator whose functions do more than the wrapped function."""

    def decorate(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            log.append("call")
            return fn(*args, **kwargs) * 2

        return call

    return decorate


@histories
class Decorated:
    def around_a_compiled_function(compiled):
        log = []
        double = doubling(log)

        @double
        @compiled
        @double
        def f(x, k=2):
            return x + k

        again = compiled(f)
        both = compiled(lambda x: f(x) + again(x, k=1))
        for _ in range(2):
            yield f(vector()), f(vector(), k=3), again(vector()), both(vector()), list(log)

    def around_compiled_methods(compiled):
        log = []
        double = doubling(log)

        class Net(torch.nn.Module):
            @double
            @compiled
            def forward(self, x):
                return x + 1

            @property
            @double
            @compiled
            def weight(self):
                return torch.ones(3)

        plain, inside = Net(), compiled(Net())
        f = compiled(lambda x: plain(x) + inside.forward(x) * plain.weight)
        for _ in range(2):
            yield plain(vector()), inside(vector()), f(vector()), list(log)

    def around_a_compiled_function_behind_breaks(compiled):
        log = []

        @doubling(log)
        @compiled
        def inner(x):
            log.append(float(x.sum()))
            return x + 1

        @compiled
        def f(x):
            y = inner(x)
            minidynamo.graph_break()
            return y * inner(y)

        for _ in range(2):
            yield f(vector()), list(log)

    def around_a_function_that_is_allowed_in_graphs(compiled):
        log = []

        @minidynamo.allow_in_graph
        def triple(x):
            return x * 3

        more = doubling(log)(triple)
        f = compiled(lambda x: more(x) + triple(x))
        for number in (1, 1, 2):
            yield f(vector() + number), list(log)

    def around_a_disabled_function(compiled):
        log = []

        @doubling(log)
        @minidynamo.disable
        def d(x):
            return x * 3

        f = compiled(lambda x: d(x) + 1)
        for _ in range(2):
            yield f(vector()), compiled(d)(vector()), list(log)
