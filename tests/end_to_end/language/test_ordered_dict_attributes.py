"""OrderedDicts with their own attributes, as returned by `state_dict()`: read, written, guarded and copied."""

import copy
from collections import OrderedDict

import torch
from torch import nn

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def model_and_input():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4)


def with_version(version):
    made = OrderedDict(a=1)
    made.version = version
    return made


def read_version(settings, x):
    return x * getattr(settings, "version", 5)


@programs()
class Cases:
    def an_attribute_of_a_new_one(x):
        made = OrderedDict(x=x * 2)
        made.version = 3
        return made, made.version, hasattr(made, "other"), getattr(made, "more", None)

    def an_attribute_that_is_deleted(x):
        made = OrderedDict(x=x)
        made.version = 3
        del made.version
        try:
            return made.version
        except AttributeError:
            return made, x + 1

    @programs(model_and_input)
    def state_of_a_module(model, x):
        state = model.state_dict()
        return state, state._metadata, model(x)

    @programs(model_and_input)
    def state_that_nobody_keeps(model, x):
        return sum(value.float().sum() for value in model.state_dict().values()) + model(x).sum()

    @programs(lambda: (nn.Linear(4, 4), nn.Linear(4, 4)))
    def an_average_through_states(model, average):
        state = model.state_dict()
        for name, value in average.state_dict().items():
            value.copy_(value * 0.9 + state[name] * 0.1)
        return average.weight * 2

    @programs(lambda: (with_version(2), torch.randn(4)))
    def an_attribute_of_an_argument(settings, x):
        y = x * settings.version
        settings.version = settings.version + 1
        settings.seen = y
        return y

    @programs(lambda: (with_version([1]), torch.randn(4)))
    def copies_keep_the_attributes(settings, x):
        shallow, deep, plain = copy.copy(settings), copy.deepcopy(settings), settings.copy()
        return shallow, deep, hasattr(plain, "version"), shallow.version is settings.version, x + 1


def test_another_attribute_is_noticed():
    makers = [lambda v=v: (with_version(v), vector()) for v in (2, 3)]
    assert_same_as_eager(read_version, *makers, recompiles=1)


def test_an_attribute_that_comes_or_goes_is_noticed():
    without = lambda: (OrderedDict(a=1), vector())
    assert_same_as_eager(read_version, without, lambda: (with_version(2), vector()), without, recompiles=1)


def test_an_attribute_that_a_copy_would_take_along_is_noticed():
    fn = lambda settings, x: (copy.copy(settings), x + 1)
    without = lambda: (OrderedDict(a=1), vector())
    assert_same_as_eager(fn, without, lambda: (with_version(2), vector()), recompiles=1)
