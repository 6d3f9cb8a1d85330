"""Attributes: properties, descriptors, slots, `__getattr__` and its kin, `__dict__`, `dir`."""

import collections
import enum
import functools
import types
import typing

import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def argument(make, *args, **kwargs):
    return lambda: (vector(), make(*args, **kwargs))


class Guarded:
    def __init__(self, value):
        self._value = value

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, new):
        self._value = new * 2

    @value.deleter
    def value(self):
        self._value = None

    @property
    def fixed(self):
        return 1


class Typed:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        setattr(obj, self.name, value + 1)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Cached:
    def __init__(self, function):
        self.function = function

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        value = obj.__dict__[self.name] = self.function(obj)
        return value


class Described:
    typed = Typed()

    def __init__(self, n=1):
        self.n = n
        self.made = 0

    @Cached
    def lazy(self):
        self.made += 1
        return self.n * 10

    @functools.cached_property
    def later(self):
        self.made += 1
        return self.n * 100


class Slots:
    __slots__ = ("a", "b", "__dict__")

    def __init__(self, a):
        self.a = a


class MoreSlots(Slots):
    __slots__ = ("c",)


def with_b():
    made = Slots(1)
    made.b = 2
    return made


class WithSlots:
    __slots__ = ("a", "b")
    k = 3

    def __init__(self):
        self.a = 1


class WithOneMore(WithSlots):
    __slots__ = ("z",)


class SlotsAndDictionary(WithSlots):
    pass


def _set_all(obj, value):
    refused = []
    for name in ("c", "k", "b", "z"):
        try:
            setattr(obj, name, value)
        except AttributeError:
            refused.append(name)
    return refused, [getattr(obj, name, None) is value for name in ("c", "k", "b", "z")]


class Intercepting:
    def __init__(self):
        self.k = 2

    def __getattribute__(self, name):
        return 7 if name.startswith("x_") else super().__getattribute__(name)

    def __getattr__(self, name):
        return name + "?"

    def scaled(self, x):
        return x * self.k


class Raises:
    def __get__(self, obj, owner=None):
        raise AttributeError("not here")


class Falling:
    """A class with `__getattr__` as the fallback after its descriptors raise."""

    descriptor = Raises()

    @property
    def scale(self):
        return self.nothing

    @functools.cached_property
    def kept(self):
        return self.nothing

    def __getattr__(self, name):
        if name == "nothing":
            raise AttributeError("nothing")
        return len(name)


class FallingClass(type):
    @property
    def scale(cls):
        raise AttributeError

    def __getattr__(cls, name):
        return len(name)


class FallingTuple(typing.NamedTuple("Pair", [("a", int), ("b", int)]), metaclass=FallingClass):
    @property
    def scale(self):
        return self.a.nothing

    def __getattr__(self, name):
        return len(name)


class FallingEnum(enum.Enum):
    ONE = 1

    @property
    def scale(self):
        raise AttributeError

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return len(name)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    @property
    def scale(self):
        return self.nothing


class Delegating(torch.nn.Module):
    """A module whose `__getattr__` gets parameters and submodules, too."""

    def __init__(self):
        super().__init__()
        self.model = Model()
        self.asked = []

    def __getattr__(self, name):
        if "asked" in self.__dict__:
            self.asked.append(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


class Measured:
    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, value):
        self._size = value


class Doubled(Measured):
    @property
    def size(self):
        return Measured.size.fget(self) + 1

    @size.setter
    def size(self, value):
        Measured.size.fset(self, value * 2)


class Recording:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __setattr__(self, name, value):
        self.log.append(name)
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self.log.append("-" + name)
        object.__delattr__(self, name)


class Table:
    def __init__(self, items):
        self.__dict__["items"] = items

    def __getattr__(self, name):
        try:
            return self.items[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self.items[name] = value


ASKED = []


class Watched:
    """Records every attribute read."""

    def __init__(self):
        self.k = 3

    def __getattribute__(self, name):
        ASKED.append(name)
        return object.__getattribute__(self, name)


class WatchedList(list):
    __getattribute__ = Watched.__getattribute__


class OneSlot:
    __slots__ = ("a",)

    def missing(self):
        return super().missing

    @classmethod
    def missing_on_class(cls):
        return super().missing


class Bare:
    pass


class Attributes(dict):
    """A dict whose items are its attributes, like configurations."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Sharing:
    shared = {"n": 2}

    def __init__(self):
        self.__dict__ = self.shared


def configuration():
    return vector(), Attributes(a=2, b=3, keys=4, inner=Attributes(k=5))


class Base:
    size = 1


class Listed(Base):
    rate = 2.0

    def __init__(self, **given):
        self.__dict__.update(given)

    def double(self):
        return 2


class OwnNames(Listed):
    def __dir__(self):
        return ["rate", *super().__dir__()[:2]]


@programs()
class Cases:
    @programs(argument(Guarded, 2))
    def properties(x, obj):
        y = x * obj.value
        obj.value = 3
        z = obj.value
        del obj.value
        try:
            obj.fixed = 2
        except AttributeError as error:
            return y, z, obj.value, str(error)

    @programs(argument(Described, 2))
    def descriptors(x, obj):
        obj.typed = 3
        y = obj.typed
        obj.typed = x
        z = obj.typed
        del obj.typed
        return y, z, obj.typed, x * obj.lazy, obj.lazy, obj.later * x, obj.later, obj.made

    def descriptors_of_a_new_object(x):
        obj = Described(x)
        obj.typed = x
        a = obj.later
        b = obj.later is a
        del obj.later
        obj.n = 3
        return obj, obj.lazy, a, b, obj.later

    @programs(
        *[lambda cls=cls: (torch.ones(2), cls()) for cls in (WithSlots, WithOneMore, SlotsAndDictionary)], graphs=3
    )
    def what_is_no_slot_cannot_be_set(x, obj):
        return x + 1, _set_all(obj, x), _set_all(type(obj)(), x), obj

    @programs(argument(Slots, 1), lambda: (vector(), with_b()), graphs=2, recompiles=1)
    def empty_slots(x, obj):
        return (x + 1 if hasattr(obj, "b") else x - 1), getattr(obj, "b", 5)

    def slots_of_a_new_object(x):
        obj = MoreSlots(x + 1)
        obj.c = 1
        obj.other = 2
        del obj.c
        return obj, hasattr(obj, "c"), obj.__dict__

    @programs(argument(Intercepting))
    def getattribute(x, obj):
        return obj.scaled(x) * obj.x_foo, obj.k, hasattr(obj, "zz"), obj.zz, object.__getattribute__(obj, "k")

    def properties_of_other_values_raise(x):
        pair = FallingTuple(1, 2)
        return x * pair.scale, pair.other, FallingTuple.scale, FallingTuple.other, hasattr(FallingEnum.ONE, "scale")

    @programs(argument(Falling))
    def property_raises_and_getattr_answers(x, obj):
        return x * obj.scale, obj.kept, obj.descriptor, hasattr(obj, "scale")

    @programs(argument(Model))
    def property_of_a_module_raises(x, model):
        try:
            return x * model.scale
        except AttributeError as error:
            return x + 1, str(error), getattr(model, "scale", 2)

    @programs(argument(Delegating))
    def module_with_its_own_getattr(x, module):
        return x[:3] * module.weight, module.asked

    @programs(argument(Doubled))
    def property_of_a_base_class(x, obj):
        obj.size = x
        return obj.size, Doubled.size.fdel

    @programs(argument(Recording))
    def setattr_and_delattr(x, obj):
        obj.a = x + 1
        obj.b = 1
        del obj.a
        made = Recording()
        made.c = obj.b
        return obj.log, made, Table({"a": 2}).a * x, hasattr(Table({}), "a"), getattr(Table({}), "a", 3)

    @programs(argument(types.SimpleNamespace, a=2), breaks=None, graphs=None)
    def simple_namespaces(x, names):
        names.b = x + 1
        made = types.SimpleNamespace(a=1, b=x)
        made.c = 2
        equal = made == types.SimpleNamespace(a=1), types.SimpleNamespace(a=1) == types.SimpleNamespace(a=1)
        return names.a * x, hasattr(names, "z"), made, equal, repr(types.SimpleNamespace(a=1)), vars(made)["c"]

    def what_is_said_of_attributes_that_are_not_there(x):
        asked = [OneSlot(), collections.deque(), x.shape, functools.partial(max), types.SimpleNamespace(), functools]
        acts = [lambda obj=obj: obj.missing for obj in (*asked, Guarded)]
        acts += [OneSlot().missing, OneSlot.missing_on_class, lambda: setattr(OneSlot(), "b", 1)]
        acts += [lambda: delattr(OneSlot(), "a"), lambda: delattr(OneSlot(), "b"), lambda: delattr(Guarded(1), "b")]
        said = []
        for act in acts:
            try:
                act()
            except AttributeError as error:
                said.append((str(error), error.name))
        return x + 1, said

    def a_dict_becomes_the_attributes(x):
        d = {"a": x, "k": 2}
        obj = Bare()
        obj.old = 1
        obj.__dict__ = d
        obj.z, d["w"] = 5, 6
        del obj.k
        other = Bare()
        other.__dict__ = obj.__dict__
        other.v = 7
        found = hasattr(obj, "k"), hasattr(obj, "old"), vars(obj) is d, [*d], getattr(obj, "q", 0)
        return obj.a * obj.w * obj.v, obj, d, found

    def a_dict_of_the_class_becomes_the_attributes(x):
        one, other = Sharing(), Sharing()
        one.n = 2
        return x * other.n, one.__dict__ is Sharing.shared

    @programs(configuration)
    def a_dict_is_its_own_attributes(x, config):
        config.a += 1
        config["z"] = config.b * config.keys
        del config.b
        made = Attributes(a=x, n=2)
        made.c = config.z + config.inner["k"]
        return made.a * made["c"] * config.a, made, hasattr(config, "b"), vars(made) is made, {**config}

    @programs(argument(Listed, b=3, a=4), breaks=None, graphs=None)
    def names_of_objects(x, obj):
        made = Listed(c=1)
        made.d = 2
        total = sum(
            [getattr(obj, name) for name in dir(obj) if name[0] != "_" and isinstance(getattr(obj, name, ""), int)]
        )
        return x * total, dir(made), dir(Listed), dir(OwnNames()), Listed.mro(), dir(3), made.__dir__()

    @programs(lambda: (torch.nn.Linear(4, 2), vector()), breaks=None, graphs=None)
    def names_of_a_module(module, x):
        return module(x), "weight" in dir(module), [name for name in dir(module) if name.startswith("b")]


def test_nothing_of_an_object_is_read_beside_what_the_program_reads():
    def fn(watched, items, x):
        y = x + watched.k
        minidynamo.graph_break()
        watched.k += 1
        items.append(y)
        minidynamo.graph_break()
        return y * vars(watched)["k"], len(items), watched.k

    compiled, asked = minidynamo.compile(fn, backend="eager"), []
    for call in (fn, compiled, compiled, compiled):  # a new object is a miss, with an explanation
        watched, items = Watched(), WatchedList()
        ASKED.clear()
        call(watched, items, torch.ones(2))
        asked.append([*ASKED])
    assert asked == [["k", "k", "append", "__dict__", "k"]] * 4


def test_attributes_that_are_moved_to_another_dict():
    @minidynamo.compile(backend="eager")
    def fn(x, config):
        return x * config.a

    config = Attributes(a=2)
    assert fn(torch.ones(1), config).item() == 2
    config.__dict__ = {"a": 3}
    assert fn(torch.ones(1), config).item() == 3


def test_names_that_an_object_and_its_class_get_are_noticed():
    def program(x, obj):
        return x * len(dir(obj))

    compiled = minidynamo.compile(program, backend="eager")
    obj, x = OwnNames(a=1), torch.ones(1)
    plain = Listed(a=1)
    for change in (lambda: None, lambda: setattr(plain, "b", 1), lambda: setattr(Base, "later", 1)):
        change()
        assert compiled(x, obj).tolist() == program(x, obj).tolist()
        assert compiled(x, plain).tolist() == program(x, plain).tolist()
    del Base.later
    assert compiled(x, plain).tolist() == program(x, plain).tolist()
