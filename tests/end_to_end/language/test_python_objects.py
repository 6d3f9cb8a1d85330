from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Scaler:
    default = 2

    def __init__(self, by, offset=0):
        self.by = by
        self.offset = offset

    def __call__(self, x):
        return x * self.by + self.offset

    def method(self, x):
        return self(x) + self.default

    @property
    def doubled(self):
        return self.by * 2

    @doubled.setter
    def doubled(self, value):
        self.by = value / 2

    @staticmethod
    def plain(x):
        return x + 1

    @classmethod
    def make(cls, by):
        return cls(by, offset=1)


class Child(Scaler):
    default = 5

    def __init__(self, by):
        super().__init__(by, offset=10)
        self.extra = 1

    def method(self, x):
        return super().method(x) - self.extra


class Bag:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __contains__(self, item):
        return any([item is own for own in self.items])

    def __iter__(self):
        return iter(self.items)

    def __bool__(self):
        return len(self.items) > 1

    def __eq__(self, other):
        return isinstance(other, Bag) and len(self) == len(other)

    def __hash__(self):
        return 7

    def __add__(self, other):
        return Bag(*self.items, *other.items)

    def __radd__(self, other):
        return Bag(other, *self.items)

    def __neg__(self):
        return Bag(*[-item for item in self.items])

    def __lt__(self, other):
        return len(self) < len(other)


def with_scaler(cls=Scaler):
    return lambda: (vector(), cls(3))


class Offset:
    def __init__(self, by):
        self.by = by

    def __add__(self, other):
        return Offset(self.by + other)

    def __radd__(self, other):
        return other - self.by

    def __rmatmul__(self, other):
        return other * 3

    def __lt__(self, other):
        return "below"

    def __gt__(self, other):
        return "above"

    def __mul__(self, other):
        return NotImplemented


class Refusing:
    __add__ = None
    __eq__ = None
    __hash__ = None


class Accepting:
    def __radd__(self, other):
        return 1


@programs()
class Cases:
    class_attributes = lambda x: (x + Scaler.default + Child.default, Scaler.make.__name__, Scaler.__name__)
    class_made_outside_of_method = lambda x: [cls(2)(x) for cls in (Scaler, Child)]

    @programs(with_scaler(), with_scaler(Child), graphs=2, recompiles=1)
    def methods(x, s):
        return s(x), s.method(x), s.by, s.default

    @programs(with_scaler())
    def properties_static_and_class_methods(x, s):
        return x * s.doubled, s.plain(x), Scaler.plain(x), Scaler.make(4)(x), s.make(2).offset

    @programs(with_scaler())
    def attributes_written(x, s):
        s.by = 5
        s.result = x + s.by
        del s.offset
        s.doubled = 8
        return s.by, s.result

    @programs(with_scaler())
    def attribute_functions(x, s):
        s.added = x + 1
        return getattr(s, "by"), getattr(s, "nope", 7), hasattr(s, "offset"), hasattr(s, "nope"), s.added  # noqa: B009

    def objects_made_while_tracing(x):
        s = Child(2)
        s.offset = x
        return s(x), s.method(x), isinstance(s, Scaler), type(s) is Child, issubclass(Child, Scaler), type(s).__name__

    @programs(breaks=0)
    def object_returned(x):
        return Scaler(x + 1, offset=2).by, Child(1).offset

    @programs(lambda: (vector(), Bag(1, 2)))
    def special_methods(x, bag):
        bag[0] = x
        total = 0
        for item in bag:
            total = total + item
        return total, len(bag), bag[1], x in bag, bag == Bag(3, 4), bag != 3, bool(bag), not Bag(1), [*bag]

    def operators_on_objects(x):
        bag = Bag(x, 1) + Bag(2)
        more = 5 + bag
        return (-Bag(x)).items, bag.items, more.items, Bag(1) < Bag(1, 2), Bag(1) > Bag(1, 2)

    @programs(lambda: (vector(), Scaler(2)), lambda: (vector(), None), graphs=1, recompiles=1)
    def optional_object(x, s):
        return x if s is None else s(x)

    @programs(lambda: (vector(), [Scaler(1), Scaler(2)]))
    def objects_in_a_list(x, scalers):
        for s in scalers:
            x = s(x)
        return x

    @programs(lambda: (vector(), Offset(2)))
    def operators_of_objects_beside_tensors(x, offset):
        y = x
        y += offset
        return (offset + x).by, x + offset, x @ offset, x < offset, offset < x, y

    @programs(lambda: (vector(), Offset(2)), graphs=0, breaks=1)
    def operators_that_neither_side_knows(x, offset):
        return offset * x

    def operators_that_a_class_refuses(x):
        said = []
        for ask in (lambda: Refusing() + Accepting(), lambda: Refusing() == 1, lambda: Refusing() in [1]):
            try:
                said.append(ask())
            except TypeError:
                said.append("refused")
        return x + 1, said
