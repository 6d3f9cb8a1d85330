from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Plain:
    pass


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __hash__(self):
        return hash((self.x, self.y))

    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)


class Unhashable:
    def __eq__(self, other):
        return True


SHARED = Plain()
VECTOR = vector()


@programs()
class Cases:
    def hashes(x):
        return x + 1, hash(Point(1, "a")) == hash((1, "a")), hash((Point(1, 2), 3)) == hash((Point(1, 2), 3)), hash(5)

    def hash_of_what_has_none(x):
        try:
            return hash(Unhashable())
        except TypeError:
            return x + 1

    def keys_with_their_own_equality(x):
        table = {Point(1, 2): x}
        table[Point(1, 2)] = x + 1
        table[Point(2, 2)] = 3
        return table[Point(1, 2)], len(table), Point(3, 3) in table, (Point(1, 2), 1) in {(Point(1, 2), 1): 2}

    @programs(graphs=0)
    def a_key_of_the_user_returned(x):
        return [(key.x, value) for key, value in {Point(1, 2): x}.items()]

    @programs(lambda: (VECTOR, SHARED))
    def addresses_of_what_exists(x, obj):
        seen = {id(obj): x}
        return seen[id(obj)] + 1, id(obj) == id(SHARED), id(x) == id(x)

    @programs(graphs=1)
    def what_has_no_hash(x):
        messages = []
        for value in ({}, [], set()):
            try:
                hash(value)
            except TypeError as error:
                messages.append(str(error))
        return x + 1, messages
