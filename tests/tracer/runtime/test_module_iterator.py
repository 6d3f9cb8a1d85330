import pytest

from minidynamo.tracer.runtime.module_iterator import ModuleIterator


@pytest.mark.parametrize("position", range(4))
def test_it_goes_on_where_a_loop_has_been_cut(position):
    table = {"a": 1, "b": 2, "c": 3}
    iterator = ModuleIterator(table, position)
    assert iter(iterator) is iterator
    assert [*iterator] == [1, 2, 3][position:]
    assert [*iterator] == []


@pytest.mark.parametrize("change", [lambda table: table.pop("a"), lambda table: table.update(d=4)])
def test_a_changed_size_is_an_error_as_in_python(change):
    for make in (lambda table: ModuleIterator(table, 0), lambda table: iter(table.values())):
        table = {"a": 1, "b": 2}
        iterator = make(table)
        next(iterator)
        change(table)
        with pytest.raises(RuntimeError, match="dictionary changed size during iteration"):
            next(iterator)


def test_a_replaced_value_is_seen():
    table = {"a": 1, "b": 2}
    iterator = ModuleIterator(table, 1)
    table["b"] = 3
    assert next(iterator) == 3
