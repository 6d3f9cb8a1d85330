"""Definitions that change between calls: code, descriptors, metaclasses, enums, namedtuples."""

from __future__ import annotations

import collections
import enum
import functools
import math
import types
import weakref
from unittest import mock

import torch

from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


def global_step(x):
    return x + 1


class Odd(collections.namedtuple("Odd", "a b")):
    """A namedtuple that overrides the C methods of tuples."""

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return True

    def __bool__(self):
        return False

    def __iter__(self):
        return iter([5, 6])


def scaled_by(x, by=2):
    return x * by


def named_anew(name):
    def function(x):
        return x * 2

    function.__name__ = name
    return function


@histories
class Cases:
    def code_of_a_global_function(compiled):
        """Tools that reload code keep the function and replace its code."""
        old = global_step.__code__

        @compiled
        def f(x):
            return global_step(x) * 2

        yield f(vector())
        global_step.__code__ = (lambda x: x * 7).__code__
        yield f(vector())
        global_step.__code__ = old
        yield f(vector())

    def code_and_defaults_of_the_function_itself(compiled):
        def f(x, a=2, /, b=3, *rest, c=4, **others):
            return x * a + b + len(rest) + c + others.get("d", 0)

        f_compiled = compiled(f)
        yield f_compiled(vector())
        f.__defaults__ = (5, 6)
        yield f_compiled(vector())
        f.__defaults__ = (7, 8)
        yield f_compiled(vector(), b=1), f_compiled(vector(), 9)
        f.__kwdefaults__ = {"c": 9}
        yield f_compiled(vector(), 1, 2, 3, d=4)
        f.__kwdefaults__["c"] = 10
        yield f_compiled(vector())
        f.__code__ = (lambda y, z, w=0, c=0: y - z - w - c).__code__
        yield f_compiled(vector(), 2), f_compiled(vector(), 2, w=1)
        f.__defaults__ = None
        yield f_compiled(vector(), 1, 2, 3), attempt(lambda: f_compiled(vector(), 1))

    def old_defaults_that_are_given(compiled):
        """In the call after the change, too, explicit arguments count as explicit."""

        def f(x, a=2, /, b=None, *rest, c=4, d, **others):
            return x + 1, a, b, rest, c, d, others

        g = compiled(f)
        yield g(vector(), d=1), isinstance(attempt(lambda: g(vector())), TypeError)
        for arguments in ((2, None), (2,), (), (2, None, 3)):
            f.__defaults__ = (f.__defaults__[0] + 100, 7) if arguments else (2, None)
            yield g(vector(), *arguments, d=1)
            f.__defaults__ = (2, None)
            yield g(vector(), *arguments, b=None, d=1) if len(arguments) < 2 else g(vector(), *arguments, d=1)
        f.__kwdefaults__["d"] = 5
        yield g(vector()), g(vector(), c=4)
        f.__kwdefaults__ = {"c": 9}
        yield g(vector(), c=4, d=1), g(vector(), d=1)
        del f.__kwdefaults__["c"]
        yield isinstance(attempt(lambda: g(vector(), d=1)), TypeError), g(vector(), c=1, d=1)
        g.__defaults__, g.__kwdefaults__ = (70, 80), {"c": 1, "d": 2}
        yield g(vector()), g(vector(), 2, None, c=4)

    def defaults_of_a_compiled_function_that_is_called(compiled):
        @compiled
        def scale(x, by=2, *, plus=3):
            return x * by + plus

        @compiled
        def f(x):
            return scale(x), scale(x, 2), scale(x, plus=3), scale.__defaults__, scale.__kwdefaults__["plus"]

        yield f(vector())
        scale.__defaults__ = (5,)
        yield f(vector())
        scale.__kwdefaults__ = {"plus": 7}
        yield f(vector()), scale(vector(), 2)

    def members_of_an_enum(compiled):
        factor = 2

        class Mode(enum.Enum):
            SLOW = 1
            FAST = 2

            def __init__(self, number):
                self.weight = number * 10

            @property
            def scaled(self):
                return self.value * factor

            def doubled(self):
                return self.value * 2

        @compiled
        def f(x, mode):
            return x * mode.value + mode.weight, mode.scaled, mode.name, mode.doubled(), mode is Mode.SLOW

        yield f(vector(), Mode.SLOW), f(vector(), Mode.FAST)
        factor = 5
        yield f(vector(), Mode.SLOW)
        Mode.SLOW.weight = 70
        yield f(vector(), Mode.SLOW)
        Mode.SLOW._value_ = 9
        yield f(vector(), Mode.SLOW)
        Mode.scaled = property(lambda self: -1)
        yield f(vector(), Mode.SLOW)
        Mode.doubled = lambda self: -2
        yield f(vector(), Mode.SLOW)

    def descriptors_read_through_the_class(compiled):
        class Setting:
            def __init__(self, value):
                self.value = value

            def __get__(self, instance, owner=None):
                return self.value, instance is None, owner.__name__

        class Config:
            rate = Setting(3)

            @classmethod
            def read(cls):
                return cls.rate

        class Derived(Config):
            @classmethod
            def read(cls):
                return super().rate

        @compiled
        def f(x):
            return x * Config.rate[0], Config.rate, Config().rate, Config.read(), Derived.rate, Derived.read()

        yield f(vector())
        vars(Config)["rate"].value = 4
        yield f(vector())
        Setting.__get__ = lambda self, instance, owner=None: (99, None, "")
        yield f(vector())

    def values_of_a_class_that_become_descriptors(compiled):
        class Value:
            pass

        class Config:
            rate = Value()
            kept = Value()

        f = compiled(lambda x, config: (x * config.rate.n, config.kept))

        @compiled
        def write(config):
            config.kept = 5
            return config.kept

        Config.rate.n = 2
        config = Config()
        config.kept = 1
        yield f(vector(), config), write(config), vars(config)
        Value.__set__ = lambda self, instance, value: None
        Value.__get__ = lambda self, instance, owner: self if instance is None else types.SimpleNamespace(n=7)
        yield f(vector(), config)[0], write(config).n, vars(config)
        yield f(vector(), config)[1].n
        del Value.__set__
        yield f(vector(), config), write(config), vars(config)

    def objects_that_claim_a_class(compiled):
        class Wanted:
            pass

        class Claims:
            __class__ = property(lambda self: self.cls)

        class Always:
            __class__ = Wanted

        class Computed:
            def __getattribute__(self, name):
                return Wanted if name == "__class__" else object.__getattribute__(self, name)

        @compiled
        def f(x, value):
            match value:
                case Wanted():
                    x = x + 10
                case int():
                    x = x + 20
            return x, isinstance(value, Wanted), isinstance(value, (int, str)), value.__class__.__name__, type(value)

        claims = Claims()
        for claims.cls in (Wanted, int, Claims):
            yield f(vector(), claims)
        known = Wanted()
        for value in (Always(), Computed(), mock.Mock(spec=Wanted), mock.Mock(), weakref.proxy(known), known):
            yield f(vector(), value)

    def methods_of_a_metaclass(compiled):
        class Kind(type):
            pass

        class Box(metaclass=Kind):
            pass

        @compiled
        def f(x):
            return x + 1, type(Box()).__name__, bool(Box), Box == 3

        yield f(vector())
        Kind.__call__ = lambda cls: 3
        yield f(vector())
        Kind.__bool__ = lambda cls: False
        yield f(vector())
        Kind.__eq__ = lambda cls, other: True
        yield f(vector())
        del Kind.__call__
        yield f(vector())

    def classes_of_a_metaclass_that_has_all_names(compiled):
        class Dynamic(type):
            def __getattr__(cls, name):
                return name

            def __instancecheck__(cls, value):
                return value == 3

        class Three(metaclass=Dynamic):
            pass

        f = compiled(lambda x, n: (isinstance(n, Three), x * n, Three.anything))
        yield f(vector(), 3), f(vector(), 4)

    def functions_behind_breaks(compiled):
        """Functions after breaks are compiled separately; tools that reload code replace their code and defaults."""

        def scale(x, by=2, *, plus=1):
            print("scale")
            return x * by + plus

        class Layer(torch.nn.Module):
            def forward(self, x):
                print("forward")
                return scale(x)

        def forward(self, x):
            return scale(x, 10)

        @compiled
        def f(x):
            return scale(x)

        layer = compiled(Layer())
        yield f(vector()), layer(vector())
        scale.__defaults__ = (5,)
        yield f(vector()), layer(vector())
        scale.__kwdefaults__ = {"plus": 9}
        yield f(vector()), layer(vector())
        scale.__code__ = (lambda x, by, *, plus: x - by - plus).__code__
        yield f(vector()), layer(vector())
        Layer.forward.__code__ = forward.__code__.replace(co_freevars=Layer.forward.__code__.co_freevars)
        yield f(vector()), layer(vector())

    def metaclass_of_a_class(compiled):
        class Sized(type):
            def __len__(cls):
                return 4

        class Longer(Sized):
            def __len__(cls):
                return 5

        class Box(metaclass=Sized):
            pass

        f = compiled(lambda x: x * len(Box))
        yield f(vector())
        Box.__class__ = Longer
        yield f(vector())

    def fields_and_methods_of_a_namedtuple(compiled):
        class Pair(collections.namedtuple("Pair", "a b")):
            def total(self):
                return self.a + self.b

        Plain = collections.namedtuple("Plain", "a b")
        f = compiled(lambda x, pair, plain: (x * pair.a + pair.total(), plain.a, plain.b))
        yield f(vector(), Pair(1, 2), Plain(3, 4))
        Pair.total = lambda self: 100
        yield f(vector(), Pair(1, 2), Plain(3, 4))
        Pair.a = 50
        yield f(vector(), Pair(1, 2), Plain(3, 4))
        Plain.a = property(lambda self: 60)
        yield f(vector(), Pair(1, 2), Plain(3, 4))

    def methods_of_one_object_or_of_two(compiled):
        class Layer:
            def __init__(self, weight):
                self.weight = weight

            def forward(self, x):
                return x * self.weight

        one, two = Layer(2), Layer(3)
        f = compiled(
            lambda x, method: (method(x), method == one.forward, method != two.forward, method in [two.forward])
        )
        for method in (one.forward, two.forward, one.forward, two.forward):
            yield f(vector(), method)

    def equal_items_of_sets(compiled):
        """The intersection takes the item of the smaller set, of two equal items with different types."""

        @compiled
        def f(x, one, two):
            both = one & two
            rest = set(one)
            rest &= two
            return x * len(both), both, rest, one.intersection(two), one.intersection(list(two))

        for one, two in (
            ({1, 2}, {True}),
            ({True}, {1, 2}),
            ({1}, {True}),
            ({1.0, 3}, {1, 3, 4}),
            ({0, 5}, {False, 5, 6}),
        ):
            yield f(vector(), one, two)

    def sizes_that_are_one_number(compiled):
        f = compiled(lambda x, y: (x.sum() + y.sum(), x.shape[0] is y.shape[0]))
        for one, two in ((3, 3), (4, 4), (5, 4), (5, 5)):
            yield f(torch.ones(one), torch.ones(two))

    def keyword_defaults_of_a_global_function(compiled):
        def step(x, scale=2, *, shift=3):
            return x * scale + shift

        @compiled
        def f(x):
            return step(x)

        yield f(vector())
        step.__kwdefaults__["shift"] = 7
        yield f(vector())
        step.__kwdefaults__ = None
        yield isinstance(attempt(f, vector()), TypeError)
        step.__defaults__, step.__kwdefaults__ = (1,), {"shift": 0}
        yield f(vector())

    def namedtuples_with_methods_of_their_own(compiled):
        @compiled
        def f(x, pair):
            return x * pair.a, hash(pair), not pair, 1 if pair else 2, {pair: 1}[Odd(3, 4)], [*pair], sum(pair)

        yield f(vector(), Odd(1, 2)), f(vector(), Odd(3, 4))

    def keys_without_a_hash(compiled):
        for program in (
            lambda d: {(1, []): d},
            lambda d: d[{}],
            lambda d: d.setdefault(bytearray(b"a")),
            lambda d: {slice(2): 1},
        ):
            f = compiled(lambda x, d, program=program: (x + 1, program(d)))
            yield attempt(f, vector(), {1: 2}), attempt(f, vector(), {1: 2})

    def functions_of_libraries_that_are_replaced(compiled):
        layer = torch.nn.Linear(3, 3)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        f = compiled(lambda x: (torch.relu(x - 1), torch.nn.functional.gelu(x), x * math.sqrt(4.0), layer(x)))
        yield f(vector())
        for name in ("torch.relu", "torch.nn.functional.gelu", "math.sqrt", "torch.nn.functional.linear"):
            with mock.patch(name, lambda x, *rest: x * 7):
                yield f(vector())
        yield f(vector())

    def attributes_of_a_partial(compiled):
        part = functools.partial(scaled_by, by=3)

        @compiled
        def f(x):
            return part(x), hasattr(part, "note"), getattr(part, "__name__", None), getattr(part, "factor", 1) * x

        yield f(vector())
        yield functools.partial(part).func is scaled_by
        functools.update_wrapper(part, scaled_by)
        yield f(vector())
        for factor in (2.0, 3.0, vector()):
            part.note = part.factor = factor
            yield f(vector())
        del part.factor
        yield f(vector())

    def the_dict_of_a_function(compiled):
        marked = lambda x: x

        @compiled
        def written_first(x, n):
            marked.calls = n
            return x, "calls" in vars(marked), sorted(marked.__dict__)

        @compiled
        def read_first(x, n):
            table = vars(marked)
            table["size"] = n
            marked.more = table.get("more", 0) + 1
            return marked.size, marked.more, sorted(table), hasattr(marked, "missing")

        for n in range(3):
            yield written_first(vector(), n)
            yield read_first(vector(), n)
            yield vars(marked)
        del marked.more
        yield read_first(vector(), 3)

    def kinds_of_built_in_methods(compiled):
        @compiled
        def f(x, value):
            kinds = [type(method).__name__ for method in (value.__eq__, [].__len__, [].pop, x.add, x.__add__, "".join)]
            return kinds, isinstance(value.__hash__, types.MethodWrapperType)

        yield f(vector(), 1), f(vector(), "a")

    def partials_of_partials_with_attributes(compiled):
        plain, tagged = functools.partial(scaled_by, by=3), functools.partial(scaled_by, by=4)
        tagged.tag = 1

        @compiled
        def f(x, part):
            outer = functools.partial(part, by=5)
            return outer(x), outer.func is scaled_by, outer.func is part, outer.keywords

        for part in (plain, tagged, plain, tagged):
            yield f(vector(), part)
        plain.tag = 2
        yield f(vector(), plain)

    def functions_that_share_their_code(compiled):
        """The same code in torch functions computes different operations, and globals belong to a different module."""
        code = (lambda x, by: x * by * BY).__code__  # noqa: F821
        called = compiled(lambda function, x: function(x, 2))
        one, other = (types.FunctionType(code, {"BY": by}) for by in (2, 3))
        pools = (torch.nn.functional.max_pool1d, torch.nn.functional.adaptive_max_pool1d)
        for function in (one, other, *pools, one, pools[0]):
            yield called(function, torch.arange(8.0).reshape(1, 1, 8))

    def functions_with_the_same_code(compiled):
        """The code determines the result of a function, but not its identity."""
        functions = [named_anew(name) for name in "abc"]
        known, table = functions[1], {functions[1]: 5}
        questions = (
            lambda holder, x: (holder.function == known, holder.function(x)),
            lambda holder, x: (holder.function in [known], holder.function.__name__, x + 1),
            lambda holder, x: (table.get(holder.function), x + 1),
        )
        for question in questions:
            f = compiled(question)
            for position in (0, 1, 0, 2, 1):
                yield f(types.SimpleNamespace(function=functions[position]), vector())
