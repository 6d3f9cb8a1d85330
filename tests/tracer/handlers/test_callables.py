import functools

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


def scale(x, by=2):
    """Scale."""
    return x * by


@programs()
class Cases:
    @programs(breaks=1, graphs=1)
    def update_wrapper_of_a_real_function_breaks(x):
        y = x + 1
        functools.update_wrapper(scale, scale, assigned=(), updated=())
        return y

    def bound_methods(x):
        xs = []
        add = xs.append
        add(x + 1)
        up = "a".upper
        join = ", ".join
        return xs, up(), join(["a", "b"]), list(map(str.upper, ["p", "q"])), list(map("{}!".format, [1]))
