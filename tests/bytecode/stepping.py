"""Runs a function one breaking instruction at a time: the oracle for all tests in this folder."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from minidynamo.bytecode.analysis import first_index, reason_against_cut
from minidynamo.bytecode.breaks import make_break, make_loop, make_resume
from minidynamo.bytecode.layout import FramePoint, frame_point
from tests.bytecode import corpus


def start(fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[FramePoint, list[Any]]:
    """Returns the frame point after RESUME of a call of `fn`, and the values that its frame holds at this point."""
    code = fn.__code__
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    cells = dict(zip(code.co_freevars, fn.__closure__ or ()))
    for name in code.co_cellvars:
        cells[name] = types.CellType(arguments.pop(name)) if name in arguments else types.CellType()
    point = frame_point(code, first_index(code), (), arguments, cells)
    return point, [cells[n] for n in point.cells] + [arguments[n] for n in point.locals]


class Stepper:
    """Runs calls of one function as chains of break functions, each built once. `whole_loops`: the loops that
    `make_loop` accepts run in one step from the first iteration on."""

    def __init__(self, fn: types.FunctionType, *, whole_loops: bool = False) -> None:
        self.fn = fn
        self.whole_loops = whole_loops
        self.loops: dict[FramePoint, types.FunctionType] = {}
        self.breaks: dict[FramePoint, types.FunctionType] = {}
        self.continues: dict[FramePoint, types.FunctionType] = {}

    def points(self, *args: Any, **kwargs: Any) -> Iterator[tuple[FramePoint | None, Any]]:
        """Yields every frame point of a call with the list of the frame's values; at last None and the result."""
        point, boxed = start(self.fn, args, kwargs)
        del args, kwargs
        while point is not None:
            assert len(boxed) == point.size
            yield point, boxed
            if point not in self.breaks:
                loop = make_loop(point, self.fn.__globals__, lambda way: way) if self.whole_loops else None
                self.loops |= {} if loop is None else {point: loop}
                self.breaks[point] = loop or make_break(point, self.fn.__globals__, lambda way: way)
            point, boxed = self.breaks[point](boxed)
        yield None, boxed

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the call, run instruction by instruction."""
        result = None
        for point, boxed in self.points(*args, **kwargs):
            assert (
                point is None or self.fn in HIDES_ITS_CUTS or reason_against_cut(self.fn.__code__, point.index) is None
            )
            result = boxed
        return result

    def step_then_continue(self, count: int, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the call, cut after `count` instructions and resumed natively."""
        for k, (point, boxed) in enumerate(self.points(*args, **kwargs)):
            if point is None:
                return boxed
            if k == count:
                if point not in self.continues:
                    self.continues[point] = make_resume(point, self.fn.__globals__)
                step, result = self.continues[point](boxed)
                assert step is None
                return result
        raise AssertionError("the function has no end")


# except* collects exceptions in a list; the analysis assumes that the collected exceptions are still in flight
# afterwards.
HIDES_ITS_CUTS = {corpus.groups}
