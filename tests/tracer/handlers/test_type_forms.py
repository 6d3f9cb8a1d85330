"""Type expressions inside a function."""

# The programs keep the style of users, against the advice of linters.
# ruff: noqa: UP006, UP007, UP035, UP045

from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Literal,
    Optional,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()
T = TypeVar("T")


class Box(Generic[T]):
    pass


@programs(lambda: (vector(),))
class Cases:
    def types_in_a_cast(x):
        x = cast(Union[torch.Tensor, int], x) + cast(List[torch.Tensor], [x])[0]
        x = x * cast(Dict[str, Box[int]], {"a": 2})["a"] + cast(Tuple[torch.Tensor, ...], (x,))[0]
        x = cast(Callable[[int, Any], Iterable[str]], x) - cast(Optional[Type[int]], x)
        return cast(Literal["a", "b"], x), cast(List[T], x)

    def types_that_leave(x):
        return x + 1, List[int], Optional[List[int]] is Optional[List[int]], List[T][int]

    def a_type_that_does_not_exist(x):
        try:
            return Optional[1, 2]
        except TypeError:
            return x + 1

    def what_types_are_made_of(x):
        parts = get_args(Dict[str, List[int]])
        makers = get_origin(List[int]), get_origin(Optional[int]) is Union, get_origin(list[int]), get_origin(int)
        made = x + len(parts), parts, makers
        return *made, get_args(Box[int])[0] is int, get_args(parts[1]), get_args(Literal["a", 2])


def test_which_type_is_written_down_is_guarded():
    forms = [List, int]
    compiled = minidynamo.compile(lambda x: (x + 1, forms[0][forms[1]]), backend="eager", fullgraph=True)
    for form, part in ((List, int), (Set, int), (Set, str), (Optional, str), (List, int)):
        forms[:] = form, part
        assert compiled(torch.ones(1))[1] == form[part]
