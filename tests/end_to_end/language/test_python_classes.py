"""Classes: class attributes, metaclasses, protocols, creation, inheritance, special methods, copies."""

import abc
import copy
import typing

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def argument(make, *args, **kwargs):
    return lambda: (vector(), make(*args, **kwargs))


class EmptyMeta(type):
    pass


class OfMeta(metaclass=EmptyMeta):
    pass


class Shared:
    count = 0
    table: typing.ClassVar = {}

    @classmethod
    def up(cls):
        cls.count += 1
        return cls.count

    def all(self):
        self.count += 1
        type(self).count += 10
        Shared.table[self.count] = 1
        return self.count


class SubShared(Shared):
    pass


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = "meta"
        return made

    @property
    def known(cls):
        return 5

    def named(cls):
        return cls.__name__

    def __getitem__(cls, key):
        return key * 2

    def __len__(cls):
        return 4

    def __iter__(cls):
        return iter([1, 2])

    def __contains__(cls, key):
        return key == 1


class Made(metaclass=Meta):
    def __init__(self, a):
        self.a = a


class Single(type):
    instances: typing.ClassVar = {}

    def __call__(cls, *args):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args)
        return cls.instances[cls]


class Only(metaclass=Single):
    def __init__(self):
        self.k = 3


class Abstract(abc.ABC):
    @abc.abstractmethod
    def size(self): ...

    def doubled(self):
        return self.size() * 2


class Concrete(Abstract):
    def size(self):
        return 3


@typing.runtime_checkable
class Sized(typing.Protocol):
    def size(self): ...


@typing.runtime_checkable
class Named(typing.Protocol):
    name: str


class WithName:
    def __init__(self):
        self.name = "n"


class OfSized(Sized):
    def size(self):
        return 2


OfSized()  # Python then gives the class an `__init__`


UNION = typing.Union[int, str]  # noqa: UP007 (the form under test)

OPTIONAL = typing.Optional[int]  # noqa: UP045


class Indexed:
    def __class_getitem__(cls, key):
        return (cls.__name__, key)


class New:
    def __new__(cls, a, *rest):
        made = super().__new__(cls)
        made.before = a
        return made

    def __init__(self, a, b=2):
        self.a = a
        self.b = b


class Other:
    def __new__(cls, a):
        return a * 2


class Loud:
    def who(self):
        return ["loud", *super().who()]


class Quiet:
    def who(self):
        return ["quiet", *super().who()]


class Bottom:
    def who(self):
        return ["bottom"]


class Mixed(Loud, Quiet, Bottom):
    """All of them."""

    def who(self):
        return ["mixed", *super().who()]


class Tree:
    def __init__(self, x):
        self.x = x
        self.items = [1, [2]]
        self.child = WithName()


class Own:
    def __init__(self, k=1):
        self.k = k

    def __copy__(self):
        return Own(2)

    def __deepcopy__(self, memo):
        return Own(3)


class Spoken:
    def __init__(self, v):
        self.v = v

    def __repr__(self):
        return f"Spoken({self.v!r})"


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class ByIndex:
    def __init__(self, *items):
        self.items = items

    def __getitem__(self, index):
        return self.items[index]


class Wrong:
    def __init__(self, result=None):
        self.result = result
        return result

    def __bool__(self):
        return 3

    def __hash__(self):
        return "text"


class Documented:
    size: int = 1
    total = property(lambda self: self.size * 2, doc="twice the size")


@programs()
class Cases:
    @programs(lambda: (torch.ones(2), OfMeta))
    def the_class_of_a_class(x, cls):
        classes = cls.__class__, int.__class__, torch.Tensor.__class__, cls.__class__.__class__
        return x * 2, classes, cls.__class__ is type(cls), cls.__class__.__name__

    def class_attributes_written(x):
        Shared.count = 0
        Shared.table.clear()
        first = Shared.up(), Shared().all(), Shared.count, dict(Shared.table)
        SubShared.count = 5
        Shared.fresh = x + 1
        second = SubShared.up(), SubShared().count, Shared.count, SubShared.fresh
        Shared.method = lambda self: self.count
        third = SubShared().method()
        del SubShared.count, Shared.fresh, Shared.method
        return first, second, third, SubShared.count, hasattr(Shared, "fresh"), getattr(SubShared, "method", None)

    def metaclasses(x):
        made = Made(x)
        found = made.a + 1, made.tag, Made.known, Made.named(), Made[3]
        return *found, len(Made), list(Made), 1 in Made, type(Made) is Meta

    @programs(graphs=None, recompiles=None)
    def singletons(x):
        return x * Only().k, Only() is Only()

    def abstract_classes_and_protocols(x):
        checks = isinstance(Concrete(), Abstract), isinstance(Concrete(), Sized), isinstance(3, Sized)
        named = isinstance(WithName(), Named), isinstance(Concrete(), Named)
        checks += issubclass(OfSized, Sized), issubclass(int, (str, Sized)), isinstance(OfSized(), Sized)
        try:
            issubclass(WithName, Named)
        except TypeError as error:
            named += (str(error),)
        try:
            Abstract()
        except TypeError:
            return x * Concrete().doubled(), checks, named

    def unions_and_names_of_typing(x):
        union = isinstance(3, int | str), isinstance(x, torch.Tensor | None)
        union += isinstance(None, OPTIONAL), isinstance(x, UNION)
        return x + 1, union, isinstance([], list), isinstance({}, typing.Mapping), issubclass(bool, (int, str))

    def making(x):
        bare = object.__new__(New)
        bare.k = x
        return New(x), New(x + 1, 5), Other(x), Indexed[3], bare, New.__new__(New, 3).before

    def mixins(x):
        names = [cls.__name__ for cls in Mixed.__mro__], Mixed.__bases__, Mixed.__name__
        names += type(Mixed).__name__, Mixed.__doc__
        made = x + 1, Mixed().who(), super(Loud, Mixed()).who(), names
        return *made, Mixed().__class__ is Mixed, "who" in Mixed.__dict__

    def methods(x):
        obj = Concrete()
        method, function = obj.doubled, Concrete.doubled
        same = method == obj.doubled, method == Concrete().doubled, method.__self__ is obj, method.__func__ is function
        return x * method(), function(obj), same, method.__name__, callable(method), callable(obj), callable(Concrete)

    @programs(argument(Tree, 2))
    def copies(x, tree):
        shallow, deep, made = copy.copy(tree), copy.deepcopy(tree), copy.deepcopy(Tree(3))
        shallow.x = x + 1
        deep.items[1].append(x)
        own = copy.copy(Own()).k, copy.deepcopy({"a": [Own()]})["a"][0].k
        return shallow, deep, made, own, shallow.items is tree.items, deep.child is tree.child, copy.copy([1, x])

    def texts(x):
        return x + 1, repr([Spoken(1)]), str({"a": Spoken(2)}), f"{[Spoken(3)]}", repr((Spoken(1),)), str(Spoken("q"))

    def iterators_of_the_user(x):
        for i in Countdown(3):
            x = x + i
        steps = list(Countdown(2)), sum(Countdown(4)), next(Countdown(3)), next(Countdown(0), "end"), [*Countdown(2)]
        return x, steps, dict(zip(Countdown(2), "ab")), list(ByIndex(1, 2, 3)), 2 in ByIndex(1, 2), max(ByIndex(3, 1))

    @programs(
        *[lambda ask=ask: (vector(), ask) for ask in (bool, hash, lambda obj: Wrong(5), lambda obj: obj())],
        graphs=4,
        recompiles=3,
    )
    def special_methods_that_give_the_wrong_class(x, ask):
        try:
            return ask(Wrong())
        except TypeError as error:
            return x + 1, str(error)

    def what_describes_a_class(x):
        fixed = Documented.__text_signature__, dict.__basicsize__ > 0, bool(Documented.__dictoffset__), int.__itemsize__
        return x * Documented().total, Documented.total.__doc__, Documented.__annotations__["size"] is int, fixed


def test_a_class_registered_later_is_noticed():
    class Late:
        pass

    f = lambda x, late: x + 1 if isinstance(late, Sized) else x - 1
    compiled = minidynamo.compile(f, backend="eager")
    one = torch.ones(2)
    assert torch.equal(compiled(one, Late()), one - 1)
    Late.size = lambda self: 3
    assert torch.equal(compiled(one, Late()), one + 1)
    Late.size = None
    assert torch.equal(compiled(one, Late()), one - 1)


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__module__", "__doc__"])
def test_a_class_that_is_renamed_is_noticed(name):
    class Renamed:
        "A text."

    compiled = minidynamo.compile(lambda x, cls: (x + 1, getattr(cls, name)), backend="eager", fullgraph=True)
    for text in (getattr(Renamed, name), "Other", "Other"):
        setattr(Renamed, name, text)
        assert compiled(torch.ones(2), Renamed)[1] == text
    assert minidynamo.stats(compiled).graphs == 2
