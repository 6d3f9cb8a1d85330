import functools

import torch

from tests.end_to_end.programs import Programs, leaf

programs = Programs()
test_same_as_eager = programs.test()
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
def decorated(x):
    """Doubles."""
    return x * 2


@programs()
class Cases:
    star_arguments = lambda x: (collect(x, 1, a=2), collect(*[x, 1], b=3), collect(), scale(*(x,), by=7))
    nested_calls = lambda x: scale(scale(scale(x), 3), plus=scale(1))
    global_values = lambda x: x * SCALE
    partial_from_outside = lambda x: (bound(x), bound(x, plus=1))
    decorated_function = lambda x: (decorated(x), decorated.__name__, decorated.__doc__)

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
