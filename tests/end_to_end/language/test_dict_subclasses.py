"""Subclasses of dict, OrderedDict and defaultdict, mappings written in Python, and attributes of OrderedDicts, as
`state_dict()` returns them."""

import collections
import copy
import dataclasses
from collections import OrderedDict, UserDict, UserList
from collections.abc import MutableMapping, Sequence

import torch
from torch import nn

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Plain(dict):
    pass


class Doubling(dict):
    def __getitem__(self, key):
        return dict.__getitem__(self, key) * 2

    def __setitem__(self, key, value):
        self.log = getattr(self, "log", 0) + 1
        super().__setitem__(key, value)


class Hostile(dict):
    """A dict whose methods only the program itself may call."""

    def refuse(self, *args):
        raise RuntimeError("not for the machinery")

    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = keys = items = update = clear = refuse


def filled(cls, **items):
    made = cls()
    dict.update(made, items)
    return made


class Attributes(dict):
    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(key) from error

    def __setattr__(self, key, value):
        self[key] = value

    def __delattr__(self, key):
        del self[key]


class Aliases(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Shared(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


@programs()
class Cases:
    @programs(lambda: (vector(), Plain(a=1, b=2)))
    def argument(x, table):
        table["c"] = x
        table["a"] = 5
        del table["b"]
        table.tag = len(table)
        return table["a"] * x, list(table), table.get("z", 1), "a" in table, dict(table), list(table.items())

    def made_here(x):
        table = Plain(a=x)
        table["b"] = 2
        table.update(c=3)
        table.setdefault("q", x + 1)
        table.pop("b")
        made = table, table | {"z": 1}, type(table | {}), table.copy()
        return *made, type(table.copy()), Plain([("k", 1)]) == {"k": 1}

    @programs(lambda: (vector(), Doubling(a=1, b=2)))
    def overridden_access(x, table):
        table["c"] = x + 1
        table.update(d=4)
        copied = dict(table), {**table}, list(table.values()), table.get("a"), (lambda **kw: kw)(**table)
        return table["a"] * x, table["c"], copied, table.log

    @programs(lambda: (vector(), filled(Hostile, a=3)))
    def behind_its_back(x, table):
        dict.__setitem__(table, "b", x)
        table.tag = 1
        found = dict.__getitem__(table, "a") * x, dict.get(table, "b"), dict.__contains__(table, "c")
        return found, dict.__len__(table), list(dict.items(table)), list(dict.__iter__(table))

    @programs(*[lambda cls=cls: (vector(), cls(a=3)) for cls in (Attributes, Aliases)], graphs=2, recompiles=1)
    def attributes_are_items(x, table):
        table.b = x
        del table["a"]
        table.a = 4
        return table.a * x, table["b"], list(table)

    def attributes_are_items_of_a_new_one(x):
        first, second = Attributes(a=3), Aliases(a=3)
        first.b = second.b = x + 1
        del first.a
        return first, second, first.b, hasattr(first, "nothing"), getattr(first, "nothing", 1), vars(second)

    @programs(lambda: (vector(), Shared(a=3)))
    def its_own_dictionary(x, table):
        table["a"] = 5
        y = x * table.a
        table.b = y
        return table["b"], table.a

    @programs(lambda: (vector(), collections.Counter("aab")))
    def counters(x, counter):
        counter["a"] += 1
        counter.update("bbb")
        made = collections.Counter([1, 1, 2])
        return counter["a"] * x, counter["nothing"], sum(counter.values()), made[1], len(made), made


class Output(OrderedDict):
    def __post_init__(self):
        fields = dataclasses.fields(self)
        if not len(fields):
            raise ValueError("no fields")
        for field in fields:
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def pop(self, *args, **kwargs):
        raise RuntimeError("not of an output")

    def __getitem__(self, key):
        if isinstance(key, str):
            return dict(self.items())[key]
        return self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


@dataclasses.dataclass
class ModelOutput(Output):
    loss: object = None
    logits: object = None
    hidden: object = None


@programs()
class DataclassesThatAreDictsAsInModelLibraries:
    output_made_here = lambda x: ModelOutput(loss=x.sum(), logits=x + 1)

    def output_read(x):
        output = ModelOutput(loss=x.sum(), logits=x + 1)
        keys = list(output.keys()), len(output), "loss" in output, output.hidden
        return output.loss, output["logits"], output[0], output.to_tuple(), keys

    @programs(lambda: (vector(), ModelOutput(logits=vector())))
    def output_changed(x, output):
        read = output.logits + x, output[0], output["logits"]
        output["logits"] = x + 2
        output.hidden = x + 1
        return read, output, output.to_tuple()


class Own(MutableMapping):
    def __init__(self):
        self.held = {}

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Row(Sequence):
    def __init__(self, *items):
        self.held = items

    def __getitem__(self, index):
        return self.held[index]

    def __len__(self):
        return len(self.held)


@programs()
class MappingsAndSequencesWrittenInPython:
    def mapping_of_the_user(x):
        table = Own()
        table["a"] = x
        table.update(b=2, c=3)
        table.setdefault("q", 7)
        popped = table.pop("b")
        read = list(table.items()), list(table.keys()), list(table.values()), "a" in table, table.get("zz"), len(table)
        return table["a"] * popped, read, table == {"a": 1}, {**table}, table

    def sequence_of_the_user(x):
        row = Row(1, x, 3)
        found = 3 in Row(1, 3), Row(1, 2).index(2), Row(1, 1).count(1)
        return list(row), row[1] + 1, found, list(reversed(row)), len(row), bool(row)

    @programs(lambda: (vector(), UserDict({"a": 2, "b": 3})))
    def user_dict(x, table):
        table["c"] = x
        table.pop("b")
        made = UserDict({"a": x})
        made["b"] = 2
        made.update(c=3)
        del made["b"]
        return x * table["a"], list(table.keys()), "a" in table, table.get("q", 1), made, len(made)

    @programs(lambda: (vector(), UserList([1, 2])))
    def user_list(x, items):
        items.append(x)
        items[0] = 5
        made = UserList([1, x])
        made += [3]
        return x * items[1], list(items), items.pop(), made, made[0:1], made + [1], len(made)


def test_changed_classes_and_keys_are_noticed():
    class Late(dict):
        pass

    f = lambda x, table: x * table["a"]
    compiled = minidynamo.compile(f, backend="eager")
    one = torch.ones(2)
    assert torch.equal(compiled(one, Late(a=2)), one * 2)
    assert torch.equal(compiled(one, Late(a=3, b=1)), one * 3)
    Late.__missing__ = lambda self, key: 5
    assert torch.equal(compiled(one, Late()), one * 5)
    Late.__getitem__ = lambda self, key: 7
    assert torch.equal(compiled(one, Late(a=2)), one * 7)


def model_and_input():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4)


def with_version(version):
    made = OrderedDict(a=1)
    made.version = version
    return made


def read_version(settings, x):
    return x * getattr(settings, "version", 5)


@programs()
class AttributesOfOrderedDicts:
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
