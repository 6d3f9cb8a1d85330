import gc
import weakref

import pytest

from minidynamo.core.garbage import collections_delayed


class Cycle:
    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def collector_on():
    gc.enable()
    yield
    gc.enable()


def test_no_collection_runs_inside_of_the_block():
    with collections_delayed():
        cycle = weakref.ref(Cycle())
        kept = [[] for _ in range(100_000)]  # far above the threshold of the youngest generation
        assert cycle() is not None and kept
    assert gc.isenabled()


def test_an_error_ends_the_delay():
    with pytest.raises(KeyError), collections_delayed():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_the_program_has_switched_off_stays_off():
    gc.disable()
    with collections_delayed():
        assert not gc.isenabled()
    assert not gc.isenabled()
