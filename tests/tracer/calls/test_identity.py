import torch

import minidynamo
from tests.end_to_end.programs import Programs, two_vectors

programs = Programs()
test_same_as_eager = programs.test()


class Plain:
    pass


@programs()
class Cases:
    @programs(two_vectors)
    def tensors_and_constants(x, y):
        return x is None, x is x, x is y, tuple({}) is tuple(set()), type(x) is torch.Tensor, len is not max, x + y

    def new_objects(x):
        one, other = Plain(), Plain()
        return x + 1, one is other, one == other, one != other, one == one, [one].index(one), other in [one]


def test_two_objects_that_are_one_in_the_next_call_are_noticed():
    def program(x, one, other):
        return x + 1 if one is other else x - 1

    compiled, plain = minidynamo.compile(program, backend="eager", fullgraph=True), Plain()
    x = torch.ones(1)
    assert [compiled(x, plain, other).item() for other in (Plain(), plain, Plain())] == [0, 2, 0]
    assert compiled.stats.graphs == 2
