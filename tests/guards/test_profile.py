"""A profile only ever grows."""

from __future__ import annotations

from minidynamo.guards.profile import FrameProfile, TripCounts, as_lines, joined, relative_strides


def test_a_number_varies_for_good_once_it_has_changed() -> None:
    profile = FrameProfile()
    assert [profile.varies("n", value) for value in (3, 3, 4, 3)] == [False, False, True, True]
    assert [profile.varies("x", value) for value in (float("nan"), float("nan"), 1.0)] == [False, False, True]


def test_an_int_and_a_float_are_different_numbers() -> None:
    profile = FrameProfile()
    assert [profile.varies("n", value) for value in (1, 1.0)] == [False, True]


def test_a_cut_before_a_loop_forgets_constants_once() -> None:
    counts, loop, number = TripCounts(), ("f.py", 3, ""), ("f.py", 4, "L['x'].size()[0]")
    counts.note({loop: {3}, number: {3}})
    counts.note_cut()
    assert counts.has_cut and counts.numbers(loop)[0] == 1 and counts.numbers(number)[0] == 0
    counts.note({number: {4}})
    counts.note_cut()
    assert counts.numbers(number)[0] == 1


def test_texts_vary_in_inner_frames_alone() -> None:
    outer, inner, fixed = FrameProfile(), FrameProfile(is_inner=True), FrameProfile(False, is_inner=True)
    assert [outer.text_varies("k", text) for text in "aba"] == [False, False, False]
    assert [inner.text_varies("k", text) for text in "aaba"] == [False, False, True, True]
    assert [fixed.text_varies("k", text) for text in "ab"] == [False, False]


def test_each_dimension_varies_by_itself() -> None:
    profile = FrameProfile()
    assert profile.layout("x", (3, 4), (4, 1)) == ((False, False), (False, False))
    assert profile.layout("x", (5, 4), (4, 1)) == ((True, False), (False, False))
    assert profile.layout("x", (3, 4), (4, 1)) == ((True, False), (False, False))


def test_another_number_of_dimensions_makes_all_of_them_vary() -> None:
    profile = FrameProfile()
    profile.layout("x", (3, 4), (4, 1))
    assert profile.layout("x", (3,), (1,)) == ((True,), (True,))


def test_what_never_is_symbolic_is_noted_all_the_same() -> None:
    profile = FrameProfile(dynamic=False)
    assert [profile.varies("n", value) for value in (3, 4)] == [False, False]
    assert profile.numbers == {"n": None}
    assert not profile.has_varied()


def test_strides_are_kept_relative_to_sizes() -> None:
    assert relative_strides((2, 3, 4), (12, 4, 1)) == ("S(1)", "S(2)", 1)
    assert relative_strides((2, 4), (9, 1)) == (9, 1)
    assert relative_strides((), ()) == ()


def test_profiles_are_joined_in_any_order_any_number_of_times() -> None:
    one, other = FrameProfile(), FrameProfile()
    for profile, size in ((one, 3), (other, 4)):
        profile.layout("x", (size, 2), (2, 1))
        profile.layout("y", (5,) * (size - 2), (1,) * (size - 2))
        profile.varies("n", 7)
        profile.varies("m", size)
    both = joined(one, other)
    assert both == joined(other, one) == joined(both, one) == joined(both, both)
    assert both.tensors == {"x": ((None, 2), ("S(1)", 1)), "y": ((None, None), (None, None))}
    assert both.numbers == {"n": 7, "m": None}


def test_the_text_marks_what_varies() -> None:
    profile = FrameProfile()
    for rows in (3, 4):
        profile.layout("L['x']", (rows, 2), (2, 1))
        profile.layout("L['z']", (7,), (1,))
        profile.varies("L['n']", rows)
    assert as_lines({"f": profile}) == [
        "f:",
        "  L['x']: size [?, 2] stride [S(1), 1]",
        "  L['z']: size [7]",
        "  L['n']: ?",
    ]
