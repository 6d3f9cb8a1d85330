import cmath
import enum
import math

import torch

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Flag(enum.IntFlag):
    X = 1
    Y = 2


@programs()
class Cases:
    @programs(graphs=0)
    def math_of_numbers(x):
        made = x, math.sqrt(2), math.isnan(math.nan), math.log(2, 10)
        return *made, math.hypot(3, 4), cmath.exp(1j), math.comb(5, 2), math.fsum([0.1] * 3)

    @programs(graphs=0, breaks=1)
    def math_error_raises(x):
        return math.sqrt(-1)

    @programs(breaks=1, graphs=1)
    def math_of_a_tensor_breaks(x):
        y = x.abs().sum()
        return math.sqrt(y) >= 0

    def torch_questions(x):
        return (
            torch.finfo(x.dtype).eps,
            torch.iinfo(torch.int32).max,
            torch.promote_types(torch.int32, torch.float16),
            torch.broadcast_shapes((2, 1), (3,)),
            torch.device("cpu"),
            torch.device("cpu").type,
            x.dtype.is_floating_point,
            x.dtype.itemsize,
            x + 1,
        )

    def flags_and_ranges(x):
        made = x * (Flag.X | Flag.Y), Flag.X & Flag.Y, Flag.X < 2, range(10)[2:5]
        return *made, range(3).count(1), hash((1, 2)), bin(5), hex(255)

    @programs(graphs=0)
    def numbers_meet_other_kinds(x):
        made = 2 * [x], "ab" * 2, 1 == "1", None == 0
        return *made, 1 < 2.5, "a" + "b", 3 in (1, 2.0, 3), (1).bit_length(), (0.5).as_integer_ratio()
