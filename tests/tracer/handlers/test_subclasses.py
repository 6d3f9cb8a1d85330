import collections

from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Missing(dict):
    def __missing__(self, key):
        self[key] = value = len(self)
        return value


class Ordered(collections.OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.last = key


class Default(collections.defaultdict):
    pass


class Queue(collections.deque):
    pass


@programs()
class Cases:
    @programs(lambda: (vector(), Missing(a=5)))
    def missing_keys(x, table):
        return x * table["a"], table["b"], table["c"], table["b"], table.get("d")

    def missing_key_without_help(x):
        try:
            return Ordered()["a"]
        except KeyError:
            return x + 1

    @programs(lambda: (vector(), Ordered(a=1)), graphs=0, breaks=1)  # `|` is left to Python
    def ordered_dict_calls_what_is_overridden(x, table):
        table.update(b=x)
        first = table.last
        table.setdefault("c", 2)
        second = table.last
        table |= {"d": 3}
        table.move_to_end("a")
        return first, second, table.last, list(table), table.copy(), type(table.copy()) is Ordered, table | {"e": 1}

    @programs(lambda: (vector(), Default(list, a=[1])), graphs=0, breaks=1)
    def default_dict(x, table):
        table["a"].append(x)
        table["b"].append(2)
        return table.copy(), type(table | {}) is Default, len(table)

    @programs(lambda: (vector(), Queue([1, 2], 2)), lambda: (vector(), Queue([1, 2], 3)), graphs=2, recompiles=1)
    def bounded_deques(x, queue):
        queue.append(3)
        return x * len(queue), queue[0]
