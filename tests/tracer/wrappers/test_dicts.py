import collections

import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable
from tests.tracer.wrapping import assert_wrapped


class Options(dict):
    pass


class Key:
    def __hash__(self):
        return 1


@pytest.mark.parametrize(
    ("value", "tracker", "kind"),
    [
        ({"a": 1}, DictVariable, GuardKind.DICT_KEYS),
        ({}, DictVariable, GuardKind.LENGTH),
        (collections.OrderedDict(a=1), DictVariable, GuardKind.DICT_KEYS),
        (collections.defaultdict(list, a=1), DictVariable, GuardKind.DICT_KEYS),
        ({(1, "a"): 1, Options: 2}, DictVariable, GuardKind.DICT_KEYS),
        ({torch.ones(1): 1}, DictVariable, GuardKind.LENGTH),
        (Options(a=1), ObjectVariable, GuardKind.DICT_KEYS),
    ],
)
def test_trackers_and_their_guards(value, tracker, kind):
    assert_wrapped(value, tracker, {GuardKind.TYPE, kind})


@pytest.mark.parametrize("value", [{Key(): 1}, globals(), vars(Options).copy() | dict.fromkeys(range(20_001))])
def test_what_cannot_be_tracked_is_opaque(value):
    assert_wrapped(value, OpaqueVariable, {GuardKind.TYPE})
