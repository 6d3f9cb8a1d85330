"""Random programs over containers, objects and closures, compared with eager on inputs that differ and alias."""

import copy
import functools
import itertools
import linecache
import random

import pytest
import torch

from minidynamo.testing import assert_same_as_eager

# Statements over xs (a list of ints), d (a dict of ints), s (a set of ints). {v}, {w} are numbers, {i}, {j} indices.
CONTAINER_STATEMENTS = """
xs.append({v}) ;; xs.insert({i}, {v}) ;; xs.extend([{v}, {w}]) ;; xs[{i}:{j}] = [{v}, {v}] ;; del xs[{i}:{j}]
xs.reverse() ;; xs.sort() ;; xs += [{v}] ;; xs *= 2 ;; out.append(xs[{i}:{j}]) ;; out.append(xs[::-1])
out.append(xs.count({v})) ;; out.append(xs.pop() if xs else None) ;; xs.remove({v}) if {v} in xs else None
out.append(sorted(xs, reverse=True)) ;; out.append(xs < [{v}]) ;; out.append(xs == [{v}, {w}])
out.append([[u, w] for u, w in zip(xs, xs[1:])]) ;; out.append(max(xs, default=None))
out.append(list(itertools.accumulate(xs))) ;; out.append(functools.reduce(lambda a, b: a - b, xs, {v}))
xs.clear() ;; out.append([u for u in xs if u > {v}]) ;; out.append(sum(u * u for u in xs))
out.append(dict(enumerate(xs))) ;; d.update({{{v}: {w}}}) ;; d[{v}] = {w} ;; d.setdefault({v}, {w})
out.append(d.pop({v}, None)) ;; out.append(d | {{{v}: {w}}}) ;; out.append([list(p) for p in d.items()])
out.append(list(d.popitem()) if d else 0) ;; out.append({v} in d) ;; out.append(sorted(d))
out.append({{k: u for k, u in d.items() if k > {v}}}) ;; out.append(d.keys() & {{{v}, {w}}})
out.append(d == {{{v}: {w}}}) ;; s.add({v}) ;; s.discard({v}) ;; s |= {{{v}, {w}}} ;; s -= {{{v}}}
out.append(s & {{{v}, {w}}}) ;; out.append(sorted(s ^ {{{v}}})) ;; out.append(s <= {{{v}, {w}, 1}})
out.append(len(s)) ;; x = x + len(xs) ;; x = x * (sum(xs) + len(d))
"""

# Statements over xs (a list of tensors), box (an object), d (a dict), x and t (tensors).
TENSOR_STATEMENTS = """
xs.append(x * {v}) ;; t = xs.pop() if len(xs) > 3 else x ;; xs[{i}:{j}] = [x] ;; ys = xs[{i}:{j}] ;; ys = xs
zs = list(xs) ;; xs[0] = xs[-1] + 1 if xs else 0 ;; del xs[0:1] ;; xs.clear() ;; xs = [x] + xs ;; ys.append(x)
zs.append(ys) ;; xs, ys = ys, xs ;; x = x + 1 ;; x.add_({v}) ;; t.add_(1) ;; t = x.view(1, 2)[0] ;; t[0] = 5
y = x.detach() ;; box.t.mul_(2) ;; box.t = x * {v} ;; box.xs.append(x) ;; box.n += 1 ;; x = x * box.n
t = box.get() ;; box.d = d ;; setattr(box, 'a{v}', xs) ;; d['k{v}'] = x ;; t = d.pop('k{v}', x) ;; d['box'] = box.n
x = x + len(d) ;; bump() ;; t = (lambda u, w=x: u + w + count)(x) ;; box.callback = lambda u: u + x
t = box.callback(t) if hasattr(box, 'callback') else t ;; print(box.n) ;; print(len(xs))
x = x + sum([u.sum() for u in xs if isinstance(u, torch.Tensor)]) ;; t = xs[0] * 2 if len(xs) > 2 else x * 3
"""


class Box:
    def __init__(self, **values):
        self.__dict__.update(values)

    def get(self):
        return self.t


def program(head, statements, tail, seed, length):
    """Returns a function f of `length` random statements between `head` and `tail`."""
    chance = random.Random(seed)
    choices = [text.strip() for line in statements.strip().splitlines() for text in line.split(" ;; ")]
    number, index = functools.partial(chance.randint, -1, 4), functools.partial(chance.randint, -3, 3)
    body = [chance.choice(choices).format(v=number(), w=number(), i=index(), j=index()) for _ in range(length)]
    source = "\n    ".join([*head, *body, tail]) + "\n"
    name = f"<random program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {"torch": torch, "itertools": itertools, "functools": functools, "__name__": "random_program"}
    exec(compile(source, name, "exec"), namespace)
    return namespace["f"]


@pytest.mark.parametrize("seed", range(40))
def test_containers_of_numbers(seed):
    f = program(["def f(x, xs, d, s):", "out = []"], CONTAINER_STATEMENTS, "return x + 1, out, xs, d, s", seed, 14)
    chance = random.Random(seed)

    def values():
        count = chance.randint(0, 4)
        numbers = [chance.randint(0, 4) for _ in range(count)]
        return numbers, {n: n * n for n in numbers[:2]}, set(numbers[1:])

    made = [values() for _ in range(3)]
    inputs = [lambda v=v: (torch.ones(2), *copy.deepcopy(v)) for v in (*made, made[0])]
    assert_same_as_eager(f, *inputs)  # loops over lists of varying lengths may be cut


HEAD = [
    "def f(x, xs, box, d):",
    "ys, zs, t, count = [], [], x * 1, 0",
    "def bump():",
    "    nonlocal count",
    "    count += 1",
]


def separate():
    box = Box(n=2, xs=[], t=torch.ones(2))
    return torch.tensor([1.0, 2.0]), [torch.ones(2), torch.zeros(2), torch.full((2,), 3.0)], box, {"k1": torch.ones(2)}


def argument_in_list():
    x, xs, box, d = separate()
    xs[1], box.t = x, xs[0]
    return x, xs, box, d


def shared_list():
    x, xs, box, d = separate()
    box.xs, d["k1"], xs[2] = xs, box.t, xs[0]
    return x, xs, box, d


@pytest.mark.parametrize("seed", range(40))
def test_tensors_and_objects(seed):
    f = program(HEAD, TENSOR_STATEMENTS, "return x, xs, ys, zs, t, count, box, d", seed, 12)
    inputs = [separate, argument_in_list, shared_list]
    random.Random(seed).shuffle(inputs)
    assert_same_as_eager(f, *inputs, inputs[0], backward=False)
