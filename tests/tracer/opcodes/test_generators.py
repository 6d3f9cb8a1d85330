import pytest

from minidynamo.errors import SkipFrame
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capture import capture

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs()
def yielded_values_in_order(x):
    log = []

    def squares(n):
        for i in range(n):
            log.append(i)
            yield x * i * i
        log.append("end")

    total = x
    for square in squares(3):
        log.append("got")
        total = total + square
    return total, log


def test_a_generator_itself_is_not_captured():
    def generator(x):
        yield x

    with pytest.raises(SkipFrame, match="A generator"):
        capture(generator, vector())
