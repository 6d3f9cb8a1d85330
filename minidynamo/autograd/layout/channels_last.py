"""Owns the layout of images: graphs with convolutions lay them out with their channels last.

On a CPU that is what torch's convolutions read fastest, and of what they make no copies. The values are those of the
program; the memory inside the graphs, and of what forward keeps for backward, is in another order. What the program
gets is laid out as in eager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.shape_only_reads import SHAPE_ONLY
from minidynamo.autograd.graph.graph_builder import copied
from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.layout.dim_order import NewLayouts, empty_as, laid_out, takes_any_layout

aten = torch.ops.aten

TAKE_IMAGES = frozenset(
    {
        aten._adaptive_avg_pool2d.default,
        aten._adaptive_avg_pool2d_backward.default,
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default,
        aten._upsample_nearest_exact2d.default,
        aten.amax.default,
        aten.avg_pool2d.default,
        aten.avg_pool2d_backward.default,
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.native_batch_norm.default,
        aten.native_batch_norm_backward.default,
        aten.native_group_norm.default,
        aten.upsample_bilinear2d.default,
        aten.upsample_nearest2d.default,
    }
)
"""What computes the same of images that lie in any order, beside what makes one tensor of any others so."""


def lay_out_images(
    forward: fx.GraphModule,
    results: int | None = None,
    backward: fx.GraphModule | None = None,
    kept: Mapping[int, int] = {},
) -> tuple[fx.GraphModule, fx.GraphModule | None] | None:
    """The graphs with the images in them laid out with channels last; None where that would not pay.

    The first `results` outputs of forward (all, when None), and all of backward, keep their layout. `kept` tells which
    input of backward is which of the other outputs of forward.
    """
    convolutions = [call for node in forward.graph.nodes if (call := _convolution(node)) is not None]
    if not any(call.is_faster() for call in convolutions) or any(call.skips_pixels() for call in convolutions):
        return None
    count = _Count()
    made, late = copied(forward), None
    _lay_out(made.graph, {}, results, count)
    if backward is not None:
        late = copied(backward)
        saved: Any = made.graph.output_node().args[0]
        inputs = late.graph.find_nodes(op="placeholder")
        given = {inputs[place]: saved[position].meta["val"] for place, position in kept.items()}
        _lay_out(late.graph, given, None, count)
    return (made, late) if 2 * count.copied <= count.images else None


@dataclass
class _Count:
    """Numbers of elements: of images that convolutions read and write, and of those that are copied."""

    images: int = 0
    copied: int = 0


@dataclass(frozen=True)
class _Convolution:
    """A convolution, or its gradients. `given` are the images that it takes, `images` those that it reads or writes."""

    given: tuple[fx.Node, ...]
    images: tuple[torch.Tensor, ...]
    weight: torch.Tensor
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def is_faster(self) -> bool:
        """Whether it takes less time with channels last, and no more memory.

        Its weights are copied up to three times in either direction, where in another layout the images are. Measured
        on an EPYC, one of many channels and few pixels takes up to three times as long with channels last.
        """
        return self.is_sound() and 3 * self.weight.numel() <= sum(map(torch.numel, self.images))

    def is_sound(self) -> bool:
        """Whether torch's kernels for channels last are sure to be right: those of bfloat16 give NaN for some shapes,
        and with dilation they write where they must not."""
        if has_symbols([*self.images, self.weight]) or not torch.backends.mkldnn.enabled:
            return False
        usual = (self.weight.ndim, self.weight.dtype, self.weight.device.type) == (4, torch.float32, "cpu")
        return usual and set(self.dilation) == {1} and not self.skips_pixels()

    def skips_pixels(self) -> bool:
        """Whether it is one of single pixels, only some of them. With channels last and, say, 8 channels that writes
        where it must not; and a copy of what it skips, to run it in another layout, is large."""
        usual = self.images[-1].shape[1] % 16 == 0 and self.groups == 1 and not self.transposed
        return set(self.weight.shape[2:]) == {1} and set(self.stride) != {1} and not usual


def _convolution(node: fx.Node) -> _Convolution | None:
    args: Any = node.args
    if node.target is aten.convolution.default:
        return _Convolution(args[:1], _values(node, args[0]), args[1].meta["val"], *args[3:9])
    if node.target is aten.convolution_backward.default:
        return _Convolution(args[:2], _values(*args[:2]), args[2].meta["val"], *args[4:10])
    return None


def _values(*nodes: fx.Node) -> tuple[torch.Tensor, ...]:
    return tuple(node.meta["val"] for node in nodes)


def _takes_any(node: fx.Node) -> bool:
    call = _convolution(node)
    if call is not None:
        return call.is_faster()
    return node.target in TAKE_IMAGES or (isinstance(node.meta["val"], torch.Tensor) and takes_any_layout(node))


def _lay_out(graph: fx.Graph, given: Mapping[fx.Node, torch.Tensor], results: int | None, count: _Count) -> None:
    """Lay out the images of a graph that is given some; the first `results` outputs, or all, keep their layout."""
    layouts = NewLayouts(graph, _takes_any, several=True)
    for node, made in given.items():
        layouts.set(node, made)
    turned: dict[fx.Node, fx.Node] = {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in places:
        if node.op != "call_function":
            continue
        if SHAPE_ONLY.get(node.target) == 1 and node.args[0] in layouts.traced:
            node.args = (node.args[0], _stand_in(node, layouts.traced, places), *node.args[2:])
        call = _convolution(node)
        if call is not None and call.is_faster():
            count.images += sum(map(torch.numel, call.images))
            for image in call.given:
                _turn(layouts, node, image, turned)
        if node.target is aten.clone.default and node.args[0] in layouts.traced:
            node.kwargs = {}  # it was to keep a layout
        layouts.follow(node)
    output = graph.output_node()
    returned: Any = output.args[0]
    restored = [layouts.restored(output, node) for node in returned[:results]]
    output.args = ((*restored, *returned[len(restored) :]),)
    copies = {*turned.values(), *(copy for source, copy in layouts.copies.items() if not _is_of_weight(source))}
    count.copied += sum(copy.meta["val"].numel() for copy in copies)


def _stand_in(node: fx.Node, moved: Iterable[fx.Node], places: Mapping[fx.Node, int]) -> Any:
    """What a gradient of pooling takes for the image that it asks for shape and layout alone: one like it with its
    channels last that lives on anyway, since what was pooled has been computed of it."""
    shown: Any = node.args[1]
    wanted = (shown.meta["val"].shape, shown.meta["val"].dtype)
    for image in moved:
        value, last = image.meta["val"], max(places.get(user, 0) for user in (*image.users, image))
        if isinstance(value, torch.Tensor) and (value.shape, value.dtype) == wanted and last > places[node]:
            return image
    return shown


def _turn(layouts: NewLayouts, node: fx.Node, image: fx.Node, turned: dict[fx.Node, fx.Node]) -> None:
    """Give a convolution an image with channels last."""
    value = image.meta["val"]
    _, channels, height, width = value.shape
    strides = (channels * height * width, 1, width * channels, channels)
    if value.stride() == strides:  # one channel alone may lie in both ways, and would decide for the other one
        return
    if image not in turned:
        with layouts.graph.inserting_before(node):
            turned[image] = laid_out(layouts.graph, image, empty_as(value, range(4), strides))
        layouts.traced[turned[image]] = value
    node.replace_input_with(image, turned[image])


def _is_of_weight(source: fx.Node) -> bool:
    """Whether a value is the gradient of a weight, which torch brings back in order in any case."""
    maker = source.args[0] if source.args else None
    gradients = isinstance(maker, fx.Node) and maker.target is aten.convolution_backward.default
    return bool(gradients and source.args[1] == 1)
