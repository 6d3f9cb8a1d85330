from minidynamo.guards.source import Item, Local, StorageItem
from minidynamo.tracer.wrappers.contents import is_key, item_source, size_of

V = Local("v")


class Names:
    def constant(self, value, hint):
        return hint


class Key:
    def __hash__(self):
        return 1


def test_keys_can_be_tracked_if_nothing_of_the_user_compares_them():
    assert all(map(is_key, ["a", 1, None, (1, ("a",)), Names, Names()]))
    assert not any(map(is_key, [Key(), (1, Key())]))


def test_what_a_subclass_defines_is_passed_by():
    assert item_source(V, list, True)(0) == Item(V, 0) and item_source(V, list, False)(0) == StorageItem(V, 0, list)
    assert size_of(V, list, True).expression(Names()) == size_of(V, list, False).expression(Names()) == "len(v)"
    assert size_of(V, list, True) != size_of(V, list, False)
