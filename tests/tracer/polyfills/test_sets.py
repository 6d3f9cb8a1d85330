from minidynamo.tracer.polyfills import sets as twins
from tests.tracer.polyfills.agreement import same_changes, same_results

CASES = {
    set.union: [({1, 2}, [2, 3], (4,)), (set(),)],
    frozenset.union: [(frozenset({1}), [2])],
    set.difference: [({1, 2, 3}, [2], {3})],
    set.intersection: [({1, 2, 3}, [2, 3], {3, 4})],
    set.symmetric_difference: [({1, 2, 3}, [2, 4])],
    set.issubset: [({1, 2}, [1, 2, 3]), ({1, 2}, [1])],
    set.issuperset: [({1, 2}, [1]), ({1, 2}, [3])],
    set.isdisjoint: [({1, 2}, [3]), ({1, 2}, [2])],
}

CHANGING_CASES = {
    set.update: [({1}, [2], {3})],
    set.difference_update: [({1, 2, 3}, [1], {2})],
    set.intersection_update: [({1, 2, 3}, [1, 2], {2})],
    set.symmetric_difference_update: [({1, 2}, [2, 3])],
}


test_twin_gives_what_the_original_gives = same_results(CASES)
test_changing_twin_leaves_what_the_original_leaves = same_changes(CHANGING_CASES)


def test_equality():
    assert twins.set_equal({1, 2}, {2, 1}) and not twins.set_equal({1}, {2})
