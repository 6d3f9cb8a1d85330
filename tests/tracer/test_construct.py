import collections
import dataclasses
import typing

import pytest
import torch

from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    names: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int = 1


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: int = 2

    def total(self):
        return self.x + self.y


class Single:
    instance = None

    def __new__(cls, *args):
        made = super().__new__(cls)
        made.early = 1
        return made

    def __init__(self, x):
        self.x = x


class Log(list):
    def __init__(self, tag, items=()):
        super().__init__(items)
        self.tag = tag

    def append(self, item):
        super().append((self.tag, item))


class Options(dict):
    def __getattr__(self, name):
        return self[name]


@programs()
def dataclasses_made(x):
    record = Record(x)
    record.names.append("a")
    record.x = record.x + 1
    return record.x, record.names, Frozen(x, n=3).n, Record(x, [1]).names


@programs()
def objects_returned(x):
    record = Record(x + 1)
    record.names.append(record.x)
    return vars(record) if False else record.names, Point(x).total(), Point(x, 5)._replace(y=3).y


@programs()
def new_and_init(x):
    single = Single(x)
    return single.x + single.early


@programs()
def subclass_of_list(x):
    log = Log("t", [0])
    log.append(x)
    log.extend([1])
    return len(log), log[1][0], log[1][1] + 1, [type(item) for item in log]


@programs()
def subclass_of_dict(x):
    options = Options(scale=2)
    options["x"] = x
    return options.x * options.scale, list(options)


@programs()
def namedtuple_made_here(x):
    pair = collections.OrderedDict(a=x)
    return pair["a"] + 1


@programs(graphs=None, breaks=None)
def a_module_is_made(x):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)(x)


@programs(graphs=0, breaks=None)
def arguments_that_do_not_fit_raise(x):
    return Record()
