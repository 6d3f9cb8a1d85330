import collections
import collections.abc
import dataclasses
import enum

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Names:
    seven = 7


class Pair:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@dataclasses.dataclass
class Point:
    x: object
    y: int = 0


Named = collections.namedtuple("Named", "p q")


def act(value, x):
    match value:
        case 0:
            return x
        case 1 | 2:
            return x + 1
        case "hello":
            return x + 2
        case Color.RED:
            return x + 3
        case Names.seven:
            return x + 4
        case Named(p, q):
            return x * p * q
        case [a]:
            return x * 10 + a
        case [a, (b, c)]:
            return x * a + b * c
        case [a, *rest]:
            return x * a + sum(rest)
        case {"k": k, **rest}:
            return x * k + len(rest)
        case {"z": {"w": w}}:
            return x * w
        case Point(x=0):
            return x - 1
        case Point(px, y=1):
            return x - 2 + px
        case Pair(a, b) if a > b:
            return x * a
        case Pair(a, b):
            return x * b
        case bool():
            return x * 77
        case int(n):
            return x * n
        case (1.5 | 2.5) as n:
            return x * n + 1
        case float() as n:
            return x * n
        case str(s):
            return x * len(s)
        case None:
            return x * 100
        case _:
            return x * 1000


class Reader:
    __match_args__ = ("item",)

    def __init__(self):
        self.log = []

    @property
    def item(self):
        self.log.append("item")
        return 5

    def __getattr__(self, name):
        if name == "other":
            return 3
        raise AttributeError(name)


class OneEntry(collections.abc.Mapping):
    def __getitem__(self, key):
        return {"a": 4}[key]

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


class Items(list):
    pass


@programs()
class Cases:
    literals = lambda x: [act(value, x) for value in (0, 1, 2, "hello", 1.5, 3.5, None, True, 50, "other", 7, 1j)]
    mappings = lambda x: [act(v, x) for v in ({"k": 1}, {"k": 1, "q": 2}, {"z": {"w": 4}}, {"z": 3}, {})]
    classes = lambda x: [act(v, x) for v in (Pair(2, 1), Pair(1, 2), Point(0), Point(3, 1), Point(5, 6), Named(2, 3))]

    def values_and_sequences(x):
        return [act(v, x) for v in (Color.RED, Color.BLUE, [5], (1, (2, 3)), [1, 2, 3, 4], [], "ab", b"ab", range(3))]

    def shapes(x):
        match x.shape:
            case (rows, columns):
                return x * rows * columns
            case (n,) if n > 10:
                return x
            case (n,):
                return x * n

    def a_tensor_inside(x):
        match {"data": (x, [1, x + 1]), 2: None}:
            case {"data": (first, [int(k), second]), 2: None}:
                return first * second + k

    def default_is_not_made(x):
        lists = collections.defaultdict(list)
        match lists:
            case {"q": _}:
                return x
            case _:
                return x * 2, len(lists)

    def attributes_are_read_once(x):
        reader = Reader()
        match reader:
            case Reader(n, other=3):
                return x * n, reader.log

    def own_mapping_and_list(x):
        match OneEntry():
            case {"a": value}:
                x = x * value
        match Items([2, 3]):
            case Items([a, b]):
                return x * a + b

    @programs(breaks=None, graphs=None)
    def too_many_patterns(x):
        try:
            match Point(1, 2):
                case Point(1, 2, 3):
                    return x
        except TypeError as error:
            return x + 1, str(error)

    @programs(breaks=None, graphs=None)
    def twice_the_same_attribute(x):
        try:
            match Point(1, 2):
                case Point(_, x=3):
                    return x
        except TypeError as error:
            return x + 1, str(error)

    @programs(breaks=None, graphs=None)
    def not_a_class(x):
        pattern = 3
        try:
            match x.dim():
                case pattern():
                    return x
        except TypeError as error:
            return x + 1, str(error)

    @programs(graphs=2, breaks=1, recompiles=0)
    def on_a_tensor_value(x):
        match x.sum():
            case 0:
                return x
            case _:
                return x + 1
