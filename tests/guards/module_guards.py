"""A module with many layers, and guards like those of a call, for tests of the guard walk over modules."""

from __future__ import annotations

import torch

from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import HOOK_TABLES, InstanceAttr, Item, Local, Source
from minidynamo.guards.tensors import facts_of


class Net(torch.nn.Module):
    """Layers in a list, and the kinds of values that modules keep."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(layers))
        self.scale = 0.5
        self.sizes = [1, 2]
        self.names = ("a", "b")


NET = Local("net")
LAYERS = InstanceAttr(Item(InstanceAttr(NET, "_modules"), "layers"), "_modules")


def parameter_sources(net: Net) -> list[Source]:
    """Returns the sources of the parameters of the layers."""
    layers = [Item(LAYERS, name) for name in net.layers._modules]
    return [Item(InstanceAttr(layer, "_parameters"), part) for layer in layers for part in ("weight", "bias")]


def guards_of(net: Net) -> list[Guard]:
    """Returns guards of each kind that a walk can check, most kinds for each layer."""
    made = [
        Guard(NET, GuardKind.TYPE, Net),
        Guard(InstanceAttr(NET, "training"), GuardKind.IDENTITY, True),
        Guard(InstanceAttr(NET, "scale"), GuardKind.EQUALS, 0.5),
        Guard(InstanceAttr(NET, "sizes"), GuardKind.TYPE, list),
        Guard(InstanceAttr(NET, "sizes"), GuardKind.LENGTH, 2),
        Guard(Item(InstanceAttr(NET, "sizes"), 1), GuardKind.EQUALS, 2),
        Guard(InstanceAttr(NET, "names"), GuardKind.TYPE, tuple),
        Guard(Item(InstanceAttr(NET, "names"), 0), GuardKind.EQUALS, "a"),
        Guard(Item(InstanceAttr(NET, "_modules"), "layers"), GuardKind.TYPE, torch.nn.ModuleList),
        Guard(LAYERS, GuardKind.TYPE, dict),
        Guard(LAYERS, GuardKind.DICT_KEYS, tuple(net.layers._modules)),
        Guard(LAYERS, GuardKind.HAS_KEY, "0"),
        Guard(LAYERS, GuardKind.MISSING_KEY, "99"),
    ]
    for name, layer in net.layers._modules.items():
        place = Item(LAYERS, name)
        made += [
            Guard(place, GuardKind.TYPE, type(layer)),
            Guard(place, GuardKind.NO_INSTANCE_ATTR, "forward"),
            *(Guard(InstanceAttr(place, table), GuardKind.LENGTH, 0) for table in HOOK_TABLES),
        ]
    tensors = zip(parameter_sources(net), net.parameters())
    return [*made, *(Guard(source, GuardKind.TENSOR, facts_of(tensor)) for source, tensor in tensors)]
