# The programs keep the style of users, against the advice of linters.

import functools
import operator

import torch
import torch.nn.functional as F

from tests.end_to_end.programs import Programs, leaf, two_vectors

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

    def positional_only(x):
        f = lambda a, /, b, *, c: a + b * c
        return f(x, 2, c=3), f(x, b=4, c=5)

    def recursion(x):
        def power(v, n):
            return v if n == 1 else v * power(v, n - 1)

        return power(x, 4)

    def lambdas(x):
        double = lambda v: v * 2  # noqa: E731
        return double(x), (lambda a, b=1: a - b)(x), list(map(lambda v: v + 1, [1, 2]))

    def several_results(x):
        f = lambda v: (v + 1, v - 1)
        a, b = f(x)
        return a * b, f(x)[0]

    def partials(x):
        f = functools.partial(scale, by=3)
        g = functools.partial(f, plus=1)
        return f(x), g(x), g(x, plus=5), g.keywords, functools.partial(operator.mul, 2)(x)

    def decorating_while_tracing(x):
        @logged
        def inner(v):
            return v * 3

        return inner(x), inner.__name__

    @programs(graphs=0)
    def function_attributes(x):
        return x, scale.__name__, scale.__defaults__, scale.__code__.co_argcount, callable(scale), callable(3)

    @programs(lambda: (torch.ones(2), torch.relu), lambda: (torch.ones(2), torch.tanh), graphs=2, recompiles=1)
    def function_argument(x, fn):
        return fn(x) + 1

    def functions_in_containers(x):
        table = {"relu": F.relu, "double": lambda v: v * 2}
        return [f(x) for f in table.values()], table["double"](x)

    def reduce_and_sort_with_functions(x):
        total = functools.reduce(lambda a, b: a + b, [x, x * 2, 1])
        return total, sorted([3, 1, 2], key=lambda v: -v)

    def function_returned(x):
        def make(n):
            add = lambda v: v + n
            return add

        return make(2)(x), make(3)(x)

    @programs(two_vectors)
    def torch_functions(x, y):
        return (
            torch.add(x, y),
            torch.cat([x, y]),
            torch.stack((x, y), dim=1),
            F.softmax(x, dim=0),
            torch.where(x > 0, x, y),
        )

    @programs(two_vectors)
    def tensor_methods(x, y):
        return (
            x.add(y),
            x.view(2, 2).t(),
            x.sum(),
            x.mean(dim=0),
            x.relu(),
            x.max(),
            x.clamp(min=0),
            x.unsqueeze(0),
            x.to(y),
        )

    @programs(lambda: torch.randn(2, 3))
    def tensor_properties(x):
        return (
            x.shape,
            x.dtype,
            x.ndim,
            x.device,
            x.size(),
            x.size(1),
            x.dim(),
            x.numel(),
            x.T,
            x.requires_grad,
            x.is_cuda,
        )

    def questions_about_tensors(x):
        return (
            torch.is_tensor(x),
            isinstance(x, torch.Tensor),
            type(x) is torch.Tensor,
            torch.is_floating_point(x),
            x.is_floating_point(),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            x + 1,
        )

    @programs(lambda: torch.randn(3, 4))
    def tensor_indexing(x):
        return (
            x[0],
            x[-1, 1:],
            x[..., 0],
            x[:, None],
            x[[0, 2]],
            x[x > 0].shape if False else 0,
            x[torch.tensor([0, 1])],
        )

    @programs(lambda: torch.zeros(3, 4))
    def tensor_assignment(x):
        x[0] = 1
        x[:, 1] = torch.ones(3)
        x[1, 2] += 5
        return x.sum()

    @programs(breaks=1, graphs=0)
    def wrong_arguments_raise(x):
        return scale(x, 1, 2)

    def default_made_while_tracing(x):
        f = lambda v, scale=x * 2, extra=(): (v + scale, extra)
        return f(x), f(x, 1, [2])
