"""Programs about objects: classes, dataclasses, enums, properties, special methods, collections, copies.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import abc
import collections
import copy
import dataclasses
import enum
import types
import typing
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, singledispatch, total_ordering, wraps
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from benchmarks.coverage_case import Corpus

programs = Corpus()


class Scaler:
    def __init__(self, scale=2.0):
        self.scale = scale
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * self.scale


@programs()
def make_and_call_an_object(x):
    scaler = Scaler(3.0)
    return scaler(scaler(x)), scaler.calls


@programs(lambda: (Scaler(2.0), torch.randn(4)), lambda: (Scaler(4.0), torch.randn(4)))
def change_an_argument(scaler, x):
    y = scaler(x)
    scaler.scale = scaler.scale * 2
    scaler.last = y
    return y


@programs()
def return_an_object(x):
    scaler = Scaler()
    scaler.result = scaler(x)
    return scaler


@dataclass
class Config:
    hidden: int = 4
    dropout: float = 0.0
    names: list = field(default_factory=list)


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)


@dataclass
class Output:
    loss: Any
    logits: Any = None

    @property
    def probabilities(self):
        return self.logits.softmax(-1)


@programs(lambda: (Config(), torch.randn(4)), lambda: (Config(8, names=["a"]), torch.randn(4)))
def read_a_configuration(config, x):
    return x * config.hidden + len(config.names)


@programs()
def make_a_dataclass(x):
    out = Output(loss=x.mean(), logits=x)
    return out, out.probabilities


@programs()
def frozen_dataclass_arithmetic(x):
    p = Point(x, x + 1) + Point(1, 2)
    return p.x, p.y


@programs()
def dataclass_replace(x):
    a = Output(loss=x.sum(), logits=x)
    b = dataclasses.replace(a, logits=x * 2)
    return b.loss, b.logits


@programs()
def dataclass_asdict(x):
    return dataclasses.asdict(Config(hidden=3)), [f.name for f in dataclasses.fields(Output)], x + 1


@programs()
def dataclass_equality(x):
    return Config(1) == Config(1), Config(1) != Config(2), repr(Config(2)), x * 1


class Pair(NamedTuple):
    first: Any
    second: Any = 2

    def total(self):
        return self.first + self.second


Triple = namedtuple("Triple", ["a", "b", "c"])


@programs()
def named_tuples(x):
    pair = Pair(x)
    triple = Triple(1, b=x, c=3)
    return pair.total(), pair, triple._replace(a=x), triple._asdict()["b"], pair[0] is pair.first


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@programs(lambda: (Mode.TRAIN, torch.randn(4)), lambda: (Mode.EVAL, torch.randn(4)))
def branch_on_an_enum(mode, x):
    if mode is Mode.TRAIN:
        return x * 2
    return x


@programs()
def enum_reads(x):
    return (
        x * Level.HIGH,
        Mode("train").name,
        Mode["EVAL"].value,
        [m.name for m in Mode],
        bool((Flags.A | Flags.B) & Flags.A),
    )


class Temperature:
    def __init__(self, celsius):
        self._celsius = celsius

    @property
    def celsius(self):
        return self._celsius

    @celsius.setter
    def celsius(self, value):
        if isinstance(value, int) and value < -273:
            raise ValueError("too cold")
        self._celsius = value

    @classmethod
    def from_fahrenheit(cls, f):
        return cls((f - 32) / 1.8)

    @staticmethod
    def freezing():
        return 0


@programs()
def properties(x):
    t = Temperature.from_fahrenheit(x)
    t.celsius = t.celsius + Temperature.freezing()
    try:
        t.celsius = -300
    except ValueError as e:
        text = str(e)
    return t.celsius, text


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, objtype=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        setattr(obj, self.name, abs(value))


class Measured:
    size = Positive()

    def __init__(self, size):
        self.size = size


@programs()
def descriptors(x):
    m = Measured(-3)
    m.size = x * m.size
    return m.size


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a = a
        self.b = b


@programs()
def slots(x):
    s = Slotted(x, 2)
    s.a = s.a * s.b
    return s.a, hasattr(s, "c")


class Namespace:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def __getattr__(self, name):
        if name.startswith("no_"):
            return None
        raise AttributeError(name)


@programs()
def attributes_on_demand(x):
    n = Namespace(scale=2, shift=x)
    return x * n.scale + n.shift, n.no_such, hasattr(n, "other"), getattr(n, "more", 7), vars(n)["scale"]


class Frozen:
    def __init__(self, value):
        object.__setattr__(self, "value", value)

    def __setattr__(self, name, value):
        raise AttributeError(f"cannot set {name}")


@programs()
def forbidden_assignment(x):
    f = Frozen(x)
    try:
        f.value = 1
    except AttributeError as e:
        return f.value + 1, str(e)


class Vector:
    def __init__(self, data):
        self.data = data

    def __add__(self, other):
        return Vector(self.data + getattr(other, "data", other))

    def __radd__(self, other):
        return self + other

    def __mul__(self, k):
        return Vector(self.data * k)

    def __neg__(self):
        return Vector(-self.data)

    def __matmul__(self, other):
        return (self.data * other.data).sum()

    def __getitem__(self, i):
        return self.data[i]

    def __len__(self):
        return self.data.shape[0]

    def __iter__(self):
        return iter(self.data.unbind())

    def __contains__(self, item):
        return item == "data"

    def __bool__(self):
        return len(self) > 0

    def __eq__(self, other):
        return isinstance(other, Vector) and self.data is other.data

    def __hash__(self):
        return 7


@programs()
def operator_overloading(x):
    v = 1 + Vector(x) * 2
    w = -v + v
    return v.data, w @ v, v[0], len(v), [t for t in v], "data" in v, bool(v), v == Vector(v.data)


@programs()
def objects_as_keys(x):
    v = Vector(x)
    table = {v: "found"}
    return table[v], v.data + 1


@total_ordering
class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        return self.rank < other.rank


@programs()
def ordered_objects(x):
    items = sorted([Ranked(3), Ranked(1), Ranked(2)])
    return x * items[0].rank, Ranked(1) <= Ranked(2), max(items).rank


class Animal(abc.ABC):
    registry: ClassVar[dict] = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Animal.registry[cls.__name__] = cls

    @abc.abstractmethod
    def speak(self, x): ...

    def twice(self, x):
        return self.speak(self.speak(x))


class Dog(Animal):
    def speak(self, x):
        return x * 2


class Puppy(Dog):
    def __init__(self, age=1):
        super().__init__()
        self.age = age

    def speak(self, x):
        return super().speak(x) + self.age


@programs()
def inheritance(x):
    return Puppy(3).twice(x), isinstance(Puppy(), Animal), issubclass(Dog, Animal)


@programs()
def class_registry(x):
    return Animal.registry["Dog"]().speak(x), sorted(Animal.registry)


class Left:
    def run(self, x):
        return x + 1


class Right:
    def run(self, x):
        return x * 2


class Both(Left, Right):
    def run(self, x):
        return super().run(x) + Right.run(self, x)


@programs()
def multiple_inheritance(x):
    return Both().run(x), [c.__name__ for c in Both.__mro__]


class Lazy:
    def __init__(self, x):
        self.x = x

    @cached_property
    def squared(self):
        return self.x * self.x


@programs()
def cached_properties(x):
    lazy = Lazy(x)
    return lazy.squared is lazy.squared, lazy.squared, "squared" in lazy.__dict__


@lru_cache(maxsize=None)
def table_of(n):
    return [i * i for i in range(n)]


@programs()
def memoized_function(x):
    return x * sum(table_of(4))


@singledispatch
def describe(value):
    return 0


@describe.register
def _(value: int):
    return value + 1


@describe.register
def _(value: torch.Tensor):
    return value * 2


@programs()
def single_dispatch(x):
    return describe(x), describe(3), describe("a")


def logged(fn):
    @wraps(fn)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return fn(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


@logged
def doubled(x):
    return x * 2


@programs()
def decorated_with_wraps(x):
    return doubled(x), doubled.__name__


@programs()
def deque_as_buffer(x):
    buffer = deque(maxlen=3)
    for i in range(5):
        buffer.append(x * i)
    buffer.appendleft(x)
    return torch.stack(list(buffer)), len(buffer), buffer[0] is x


@programs()
def deque_as_queue(x):
    queue = deque([(x, 0)])
    total = torch.zeros_like(x)
    while queue:
        t, depth = queue.popleft()
        total = total + t
        if depth < 2:
            queue.append((t / 2, depth + 1))
            queue.append((t / 3, depth + 1))
    return total


@programs()
def ordered_dict(x):
    d = OrderedDict([("a", x), ("b", x + 1)])
    d.move_to_end("a")
    d["c"] = d.popitem(last=False)[1]
    return d


@programs()
def default_dict(x):
    groups = defaultdict(list)
    for i in range(4):
        groups[i % 2].append(x[i])
    counts = defaultdict(int)
    counts["a"] += 2
    return {k: torch.stack(v) for k, v in groups.items()}, dict(counts)


@programs()
def counter(x):
    c = Counter("abracadabra")
    c.update(["a", "z"])
    return x * c["a"], c.most_common(1), c["missing"]


@programs()
def chain_map(x):
    settings = ChainMap({"scale": 3}, {"scale": 1, "shift": 2})
    return x * settings["scale"] + settings["shift"]


@programs()
def simple_namespace(x):
    args = types.SimpleNamespace(lr=0.1, steps=2)
    for _ in range(args.steps):
        x = x - args.lr * x
    args.final = x
    return args


@programs()
def copies(x):
    settings = {"a": [1, 2], "b": {"c": 3}}
    shallow, deep = copy.copy(settings), copy.deepcopy(settings)
    settings["a"].append(3)
    return x * len(shallow["a"]), deep


@programs()
def copy_of_an_object(x):
    scaler = Scaler(3.0)
    other = copy.copy(scaler)
    other.scale = 5.0
    return scaler(x), other(x)


@programs()
def deepcopy_of_an_object(x):
    config = Config(names=["a"])
    other = copy.deepcopy(config)
    other.names.append("b")
    return x * len(config.names) + len(other.names)


@programs()
def deepcopy_of_a_tensor(x):
    y = copy.deepcopy(x)
    y.add_(1)
    return x + y


class Stateful:
    total = 0

    def __enter__(self):
        self.entered = True
        return self

    def __exit__(self, kind, value, traceback):
        self.entered = False
        return kind is ValueError


@programs()
def context_that_swallows(x):
    s = Stateful()
    with s:
        raise ValueError("swallowed")
    return x + 1, s.entered


@contextmanager
def scaled(x, k):
    yield x * k


@programs()
def context_of_a_generator(x):
    with scaled(x, 2) as y, nullcontext(3) as z:
        return y + z


@programs()
def exit_stack(x):
    log = []
    with ExitStack() as stack:
        y = stack.enter_context(scaled(x, 3))
        stack.callback(log.append, "closed")
        y = y + 1
    return y, log


@programs()
def suppressed(x):
    with suppress(KeyError):
        {}["a"]
    return x + 1


class Stack(list):
    def push(self, item):
        self.append(item)
        return self

    @property
    def top(self):
        return self[-1]


@programs()
def list_subclass(x):
    s = Stack()
    s.push(x).push(x + 1)
    return s.top, len(s), s


class AttrDict(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


@programs()
def attribute_dictionary(x):
    d = AttrDict(scale=2)
    d.out = x * d.scale
    return d, hasattr(d, "nothing")


class Tracked(collections.UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2)


@programs()
def user_dict(x):
    d = Tracked()
    d["a"] = x
    return d["a"]


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


@programs()
def own_iterator(x):
    for i in Countdown(3):
        x = x + i
    return x, list(Countdown(2)), dict(enumerate(Countdown(2)))


class Tree:
    def __init__(self, value, children=()):
        self.value = value
        self.children = list(children)

    def __iter__(self):
        yield self.value
        for child in self.children:
            yield from child


@programs()
def tree_of_objects(x):
    tree = Tree(x, [Tree(x * 2), Tree(x * 3, [Tree(x * 4)])])
    return sum(tree)


class Linked:
    def __init__(self, value, following=None):
        self.value, self.following = value, following


@programs()
def linked_list(x):
    head = None
    for i in range(4):
        head = Linked(x * i, head)
    total = 0
    while head is not None:
        total = total + head.value
        head = head.following
    return total


@programs()
def set_attributes_by_name(x):
    s = Scaler()
    for name, value in (("scale", 4.0), ("extra", x)):
        setattr(s, name, value)
    delattr(s, "calls")
    return s.scale * s.extra, hasattr(s, "calls")


@programs(lambda: (Scaler(), torch.randn(4)))
def weak_reference(scaler, x):
    ref = weakref.ref(scaler)
    return x * ref().scale


class HasScale(Protocol):
    scale: float


@programs()
def typing_constructs(x):
    value: int = typing.cast(int, 3)
    items: list[torch.Tensor] = [x] * value
    return items[0] * value


@programs()
def class_attributes(x):
    Stateful.total += 1
    Stateful.total = 0
    return x + Stateful.total


@programs()
def bound_methods(x):
    scaler = Scaler(2.0)
    f = scaler.__call__
    g = Temperature.freezing
    return f(x) + g(), f.__self__ is scaler


@programs()
def method_as_callback(x):
    class Collector:
        def __init__(self):
            self.seen = []

        def add(self, t):
            self.seen.append(t)

    c = Collector()
    for i, callback in enumerate([c.add] * 3):
        callback(x * i)
    return torch.stack(c.seen)


@programs()
def class_in_a_function(x):
    class Layer:
        factor = 3

        def __init__(self, shift):
            self.shift = shift

        def __call__(self, t):
            return t * self.factor + self.shift

    return Layer(1)(x)


@programs()
def subclass_in_a_function(x):
    class Fast(Scaler):
        def __call__(self, t):
            return super().__call__(t) + 1

    return Fast(2.0)(x)


@programs()
def dataclass_in_a_function(x):
    @dataclass
    class Local:
        a: Any
        b: int = 2

    item = Local(x)
    return item.a * item.b


@programs()
def named_tuple_in_a_function(x):
    P = namedtuple("P", "a b")
    p = P(x, 2)
    return p.a * p.b


@programs()
def getattr_chain(x):
    obj = types.SimpleNamespace(inner=types.SimpleNamespace(scale=3))
    value = obj
    for name in "inner.scale".split("."):
        value = getattr(value, name)
    return x * value


@programs()
def type_call_and_name(x):
    s = Scaler()
    t = type(s)(5.0)
    return t(x), type(s).__name__, s.__class__ is Scaler, isinstance(t, (int, Scaler))


@programs()
def dunder_len_and_bool(x):
    class Empty:
        def __len__(self):
            return 0

    return x + 1 if not Empty() else x, [] or "empty", bool({})


class Meta(type):
    def __getitem__(cls, n):
        return cls(n)


class Sized(metaclass=Meta):
    def __init__(self, n):
        self.n = n


@programs()
def metaclass_subscript(x):
    return x * Sized[3].n


@programs()
def class_getitem(x):
    class Typed:
        def __class_getitem__(cls, item):
            return item

    return x * Typed[4]


class Singleton:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.value = 3
        return cls._instance


@programs()
def singleton(x):
    return x * Singleton().value


@programs()
def frozenset_and_sets(x):
    kinds = frozenset({"a", "b"})
    more = kinds | {"c"}
    more -= {"a"} if isinstance(more, set) else frozenset({"a"})
    return x * len(more), kinds <= {"a", "b", "c"}, kinds.isdisjoint({"z"}), sorted(more ^ kinds)


@programs()
def in_place_operators_of_objects(x):
    class Acc:
        def __init__(self, v):
            self.v = v

        def __iadd__(self, other):
            self.v = self.v + other
            return self

    acc = Acc(x)
    acc += x
    acc += 1
    return acc.v


@programs()
def string_of_an_object(x):
    class Named:
        def __str__(self):
            return "named"

        def __repr__(self):
            return "Named()"

        def __format__(self, spec):
            return f"<{spec}>"

    n = Named()
    return x + 1, str(n), repr(n), f"{n}", f"{n:x}", f"{n!r}"
