from collections import OrderedDict, defaultdict

from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


@programs(graphs=0)
class Cases:
    def keys_are_equal_as_in_python(x):
        d = {1: "a"}
        d[True] = "b"
        d[1.0] = x
        d["1"] = 3
        return d, list(d), None in {None: 1}, (1, 2) in {(1, 2): 3}

    def order_after_deletion(x):
        d = {"a": 1, "b": 2, "c": x}
        del d["a"]
        d["a"] = 4
        return d, list(d), d.popitem(), next(iter(d))

    @programs(graphs=0, breaks=1)
    def default_dict_without_factory_raises(x):
        return defaultdict(None)["a"]

    @programs(lambda: (vector(), OrderedDict(a=1, b=2)))
    def ordered_dict_argument(x, d):
        d.move_to_end("a")
        d["c"] = x * 2
        return d.popitem(last=False)

    @programs(lambda: (vector(), defaultdict(list)))
    def default_dict_argument(x, d):
        d["k"].append(x + 1)
        return len(d)

    def classes_of_views(x):
        return [type(view) for d in ({}, OrderedDict()) for view in (d.keys(), d.values(), d.items(), iter(d.keys()))]
