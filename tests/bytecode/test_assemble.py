from __future__ import annotations

import dis
import types

from minidynamo.bytecode.assemble import Label, Op, Region, assemble
from minidynamo.bytecode.instructions import decode


def template(x):
    return x


def run(items, argument, constants=()):
    code = assemble(items, template.__code__, suffix=".made", temporaries=["spare"], constants=constants, stacksize=20)
    return types.FunctionType(code, {})(argument)


START = [Op("RESUME", 0)]
FIRST_CONSTANT = len(template.__code__.co_consts)


def test_names_and_file_are_those_of_the_template():
    code = assemble(
        [*START, Op("LOAD_FAST", 0), Op("RETURN_VALUE")],
        template.__code__,
        suffix=".made",
        temporaries=["spare"],
        constants=(),
        stacksize=2,
    )
    assert (code.co_name, code.co_qualname) == ("template", "template.made")
    assert code.co_filename == __file__
    assert code.co_varnames == ("x", "spare")
    assert code.co_argcount == 1


def test_constants_follow_those_of_the_template():
    items = [*START, Op("LOAD_CONST", FIRST_CONSTANT), Op("RETURN_VALUE")]
    assert run(items, 0, [slice(None)]) == slice(None)


def test_long_jumps_are_extended():
    for distance in (0, 100, 253, 254, 255, 256, 70_000):
        end = Label()
        skipped = [Op("NOP")] * distance
        items = [*START, Op("JUMP_FORWARD", jump=end), *skipped, Op("NOP"), end, Op("LOAD_FAST", 0), Op("RETURN_VALUE")]
        assert run(items, distance) == distance


def test_jumps_over_jumps_find_a_fixed_point():
    """The length of the first jump depends on the length of later jumps, which cross the limit together."""
    end = Label()
    for count in (80, 84, 85, 86, 90, 127, 128, 129):
        items = [*START, *([Op("JUMP_FORWARD", jump=end)] * count), *([Op("NOP")] * 120), end]
        items += [Op("LOAD_FAST", 0), Op("RETURN_VALUE")]
        assert run(items, count) == count


def test_backward_jumps():
    """`while x: x = x[0]` through a backward jump over 300 units."""

    def loop(x):
        while True:
            x = x[0]

    back = next(i for i in decode(loop.__code__) if i.opname == "JUMP_BACKWARD")
    start, end = Label(), Label()
    test = "POP_JUMP_FORWARD_IF_NONE" if "POP_JUMP_FORWARD_IF_NONE" in dis.opmap else "POP_JUMP_IF_NONE"
    items = [*START, start, Op("LOAD_FAST", 0), Op(test, jump=end), *([Op("NOP")] * 300)]
    items += [Op("LOAD_CONST", FIRST_CONSTANT), Op("STORE_FAST", 0), Op(back.opname, jump=start)]
    items += [end, Op("LOAD_CONST", FIRST_CONSTANT + 1), Op("RETURN_VALUE")]
    assert run(items, 5, [None, "end"]) == "end"


def test_regions_catch_with_their_depth():
    handler = Label()
    region = Region(handler, 1, False)
    items = [
        *START,
        Op("LOAD_FAST", 0),
        Op("NOP", region=region),
        Op("LOAD_FAST", 0, region=region),
        Op("RAISE_VARARGS", 1, region=region),
        handler,
        Op("PUSH_EXC_INFO"),
        Op("POP_TOP"),
        Op("POP_EXCEPT"),
        Op("RETURN_VALUE"),
    ]
    error = ValueError("x")
    assert run(items, error) is error


def test_positions_are_kept():
    positions = [i.positions for i in decode(template.__code__)]
    ops = [Op(i.opname, i.arg, positions=i.positions) for i in decode(template.__code__)]
    code = assemble(ops, template.__code__, suffix="", temporaries=[], constants=(), stacksize=2)
    assert [i.positions for i in decode(code)] == positions
