import torch

import minidynamo
from minidynamo import compile as compile_function
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Box:
    def __init__(self, **values):
        self.__dict__.update(values)


TOTAL = 0
SEEN = []


def count_globally(x):
    global TOTAL
    TOTAL += 1
    SEEN.append(TOTAL)
    return x + TOTAL


@programs(lambda: ([torch.ones(2), torch.zeros(2)],))
class Cases:
    @programs(lambda: (vector(), [1, 2, 3]))
    def list_argument_changed(x, xs):
        xs.append(x + 1)
        xs[0] = "first"
        xs.pop(1)
        xs += [x]
        return xs

    @programs(lambda: (vector(), []))
    def list_argument_filled(x, out):
        for i in range(3):
            out.append(x * i)

    @programs(lambda: (vector(), {"a": 1, "b": 2}))
    def dict_argument_changed(x, d):
        d["c"] = x * d.pop("a")
        d.update(b=3)
        return len(d)

    @programs(lambda: (vector(), {1, 2}))
    def set_argument_changed(x, s):
        s.add(3)
        s.discard(1)
        return x + len(s)

    @programs(lambda: (vector(), Box(n=1, xs=[])))
    def object_argument_changed(x, box):
        box.n += 1
        box.y = x * box.n
        box.xs.append(box.y)
        del box.n
        return box.y

    @programs(lambda: (vector(), [[1], {"k": [2]}]))
    def nested_containers_changed(x, xs):
        xs[0].append(x)
        xs[1]["k"].extend([3, x + 1])
        xs[1]["new"] = xs[0]
        return xs[1]

    @programs(lambda: (vector(), [3, 1, 2]))
    def order_changed(x, xs):
        xs.sort()
        xs.reverse()
        return x + xs[0]

    @programs(lambda: (vector(), [1]), graphs=0)
    def argument_aliased_by_result(x, xs):
        ys = xs
        ys.append(x)
        return xs, ys, [xs, ys]

    @programs(lambda: (vector(), [1, 2]))
    def cleared_and_refilled(x, xs):
        xs.clear()
        xs.extend([x, x + 1])
        return x

    @programs(lambda: (vector(), {"a": [1]}), graphs=0)
    def moved_between_containers(x, d):
        d["b"] = d.pop("a")
        d["b"].append(x)

    def list_of_tensors_changed(xs):
        a, b = xs
        xs[0] = a + b
        xs.append(b)
        return a * 2

    def list_of_tensors_cleared(xs):
        a, b = xs
        xs.clear()
        return a + b

    @programs(lambda: (torch.zeros(3), torch.ones(3)))
    def tensors_changed_in_place(x, y):
        x.add_(y)
        y[0] = 5
        x *= 2
        return x + y

    @programs(lambda: (vector(), [1]), breaks=1, graphs=None)
    def change_before_a_break(x, xs):
        xs.append(2)
        y = x + len(xs)
        minidynamo.graph_break()
        print(len(xs))
        xs.append(float(y.sum().item()) * 0)
        return y, xs


def test_globals_changed():
    compiled = compile_function(count_globally, backend="eager")
    x = torch.zeros(2)
    first = TOTAL
    assert [compiled(x)[0].item() - first for _ in range(3)] == [1.0, 2.0, 3.0]
    assert first + 3 == TOTAL and SEEN[-3:] == [first + 1, first + 2, first + 3]
