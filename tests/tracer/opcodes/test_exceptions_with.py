import pytest
import torch

from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class Noted:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *error):
        self.log.append(len(error))
        return False


@programs()
def users_context_manager(x):
    noted = Noted()
    with noted as same:
        y = x * len(same.log)
    return y, noted.log


@programs()
def two_managers(x):
    with Noted() as a, torch.no_grad():
        y = x * 2
    return y, a.log


@programs()
def nothing_is_raised(x):
    try:
        y = x + 1
    except ValueError:
        y = x
    else:
        y = y * 2
    finally:
        y = y - 1
    return y


@programs(graphs=None, breaks=None)
def raised_and_caught(x):
    y = x + 1
    try:
        if y.dim() == 1:
            raise ValueError("one")
    except ValueError as error:
        return y, str(error)
    return x


@programs(graphs=None, breaks=None)
def raised_to_the_caller(x):
    y = x + 1
    raise KeyError(y.dim())


@programs(graphs=None, breaks=None)
def raised_inside_a_manager(x):
    noted = Noted()
    try:
        with noted:
            y = x * 2
            y.no_such_attribute  # noqa: B018
    except AttributeError:
        return noted.log
    return vector()
