import datetime

import pytest

from minidynamo.tracer.handlers import values
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ExceptionVariable, ObjectVariable, OpaqueVariable


class Broken(Exception):
    pass


class StubTracer:
    """A tracer that only breaks and raises."""

    def break_graph(self, code, what, **texts):
        raise Broken(code)

    def raises(self, error, *, exact=False):
        raise error.cls if isinstance(error, ExceptionVariable) else error

    def call_method(self, obj, name, args=(), kwargs=None):
        return ConstantVariable(getattr(obj.value, name)())


class Plain:
    def __index__(self):
        return 2


TX = StubTracer()
ONE = ConstantVariable(1)


def test_expect_constant():
    assert values.expect_constant(TX, TupleVariable([ONE, ConstantVariable("a")]), "it") == (1, "a")
    with pytest.raises(Broken, match="MD230"):
        values.expect_constant(TX, TupleVariable([OpaqueVariable(object())]), "it")


def test_expect_index():
    assert values.expect_index(TX, ConstantVariable(-1), "list") == -1
    assert values.expect_index(TX, ConstantVariable(True), "list") == 1
    assert values.expect_index(TX, ConstantVariable(slice(1, None)), "list") == slice(1, None)
    assert values.expect_index(TX, ObjectVariable(Plain(), Plain), "list") == 2
    with pytest.raises(TypeError):
        values.expect_index(TX, ConstantVariable("a"), "list")


DAY = OpaqueVariable(datetime.date(2024, 1, 1))


@pytest.mark.parametrize("key", [DAY, TupleVariable([DAY])])
def test_keys_that_decide_their_equality_break(key):
    with pytest.raises(Broken, match="MD232"):
        values.expect_key(TX, key)
