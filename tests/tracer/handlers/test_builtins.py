from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Meters:
    def __init__(self, n):
        self.n = n

    def __int__(self):
        return self.n

    def __float__(self):
        return self.n / 2

    def __str__(self):
        return f"{self.n}m"

    def __format__(self, spec):
        return f"{self.n}{spec}"

    def __len__(self):
        return self.n

    def __bool__(self):
        return self.n > 3

    def __abs__(self):
        return Meters(abs(self.n))

    def __round__(self, digits=0):
        return digits

    def __divmod__(self, other):
        return self.n, other


class Dishonest:
    def __len__(self):
        return 2.5

    def __str__(self):
        return 3

    def __int__(self):
        return "one"


@programs(graphs=0)
class Cases:
    def numbers(x):
        made = x, int(" 12 "), int("z", 36), float("1e3")
        return *made, complex("1j"), round(-2.5), round(1.25, 1), pow(2, 5, 7), divmod(7.5, 2)

    @programs(lambda: (vector(), Meters(3)))
    def conversions_of_objects(x, m):
        return x * int(m), float(m), str(m), f"{m:km}", len(m), bool(m), abs(m).n, round(m, 2), divmod(m, 5), not m

    @programs(breaks=0, graphs=2)
    def int_of_a_tensor(x):
        y = x * 0 + 2
        return x * int(y.sum())

    @programs(
        lambda: (vector(), Dishonest(), len),
        lambda: (vector(), Dishonest(), str),
        lambda: (vector(), Dishonest(), int),
        graphs=None,
        breaks=None,
    )
    def special_methods_that_give_another_class_raise(x, o, function):
        return function(o)

    @programs(graphs=0, breaks=1)
    def enumerate_from_a_fraction_raises(x):
        return list(enumerate([x], 1.5))
