"""Owns the channels-last layout of images in graphs with convolutions.

On a CPU torch's convolutions read the layout fastest, and copy no images. The values do not change. The graphs, and the
saved tensors between forward and backward, use the layout internally; the program gets results in the layout of eager.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.shape_only_reads import SHAPE_ONLY
from minidynamo.autograd.graph.graph_builder import copied, fake
from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.layout.dim_order import NewLayouts, empty_as, laid_out, takes_any_layout
from minidynamo.core.records import record

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
        aten.upsample_bilinear2d.default,
        aten.upsample_nearest2d.default,
    }
)
"""Operators that accept images in any layout, in addition to the operators of `takes_any_layout`."""


def lay_out_channels_last(
    forward: fx.GraphModule,
    results: int | None = None,
    backward: fx.GraphModule | None = None,
    kept: Mapping[int, int] = {},
) -> tuple[fx.GraphModule, fx.GraphModule | None] | None:
    """Returns copies of the graphs with images in the channels-last layout; None if the layout does not pay off.

    The first `results` outputs of forward (all, if None), and all outputs of backward, keep their layout. `kept` maps
    an input position of backward to an output position of forward.
    """
    convolutions = [call for node in forward.graph.nodes if (call := _convolution(node)) is not None]
    if not any(call.is_faster() for call in convolutions) or any(call.skips_pixels() for call in convolutions):
        return None
    if backward is not None and _gradients_need_much(convolutions):
        return None
    count = _Count()
    new_forward, new_backward = copied(forward), None
    _lay_out(new_forward.graph, {}, results, count)
    if backward is not None:
        new_backward = copied(backward)
        saved: Any = new_forward.graph.output_node().args[0]
        inputs = new_backward.graph.find_nodes(op="placeholder")
        arguments = {inputs[i]: saved[position].meta["val"] for i, position in kept.items()}
        _lay_out(new_backward.graph, arguments, None, count)
    return (new_forward, new_backward) if 2 * count.copied <= count.images else None


def _gradients_need_much(convolutions: Sequence[_Convolution]) -> bool:
    """Returns whether the gradient of a grouped weight may need more memory than fusion saves; fusion saves at
    least a quarter of the images."""
    sound = [call for call in convolutions if call.is_sound()]
    copied = max((call.copied_for_gradient() for call in sound if call.groups > 1), default=0)
    return 4 * copied > sum(image.numel() for call in sound for image in call.images)


# The channels in a block of oneDNN's layouts.
_BLOCK = 16


@record
class _Count:
    """Numbers of elements."""

    #: Elements of images that convolutions read and write.
    images: int = 0
    #: Elements that are copied to change a layout.
    copied: int = 0


@record(frozen=True)
class _Convolution:
    """A convolution, or its gradients."""

    #: The image arguments.
    arguments: tuple[fx.Node, ...]
    #: Fake values of all images that the operation reads or writes.
    images: tuple[torch.Tensor, ...]
    weight: torch.Tensor
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def is_faster(self) -> bool:
        """Returns whether channels last takes less time, and no more memory.

        Channels last copies the weights up to three times; other layouts copy the images. Measured on an EPYC, a
        convolution with many channels and few pixels takes up to three times as long with channels last.
        """
        return self.is_sound() and 3 * self.weight.numel() <= sum(map(torch.numel, self.images))

    def copied_for_gradient(self) -> int:
        """Returns the number of elements in the copy of a grouped weight for its gradient.

        oneDNN pads the channels of each group to blocks: of a depthwise convolution it copies 256 times the weight.
        """
        first, second, *kernel = self.weight.shape
        padded = (-(-channels // _BLOCK) * _BLOCK for channels in (first // self.groups, second))
        return self.groups * math.prod(padded) * math.prod(kernel)

    def is_sound(self) -> bool:
        """Returns whether torch's channels-last kernels are known to be correct.

        The bfloat16 kernels return NaN for some shapes, and kernels with dilation write out of bounds.
        """
        if has_symbols([*self.images, self.weight]) or not torch.backends.mkldnn.enabled:
            return False
        is_float_image = (self.weight.ndim, self.weight.dtype, self.weight.device.type) == (4, torch.float32, "cpu")
        return is_float_image and set(self.dilation) == {1} and not self.skips_pixels()

    def skips_pixels(self) -> bool:
        """Returns whether this is a strided convolution with a 1x1 kernel.

        Torch's channels-last kernels for it write out of bounds, with 8 channels for example. The alternative is a
        copy of the image in another layout, which is large.
        """
        is_safe = self.images[-1].shape[1] % 16 == 0 and self.groups == 1 and not self.transposed
        return set(self.weight.shape[2:]) == {1} and set(self.stride) != {1} and not is_safe


def _convolution(node: fx.Node) -> _Convolution | None:
    args: Any = node.args
    if node.target is aten.convolution.default:
        return _Convolution(args[:1], _values(node, args[0]), args[1].meta["val"], *args[3:9])
    if node.target is aten.convolution_backward.default:
        return _Convolution(args[:2], _values(*args[:2]), args[2].meta["val"], *args[4:10])
    return None


def _values(*nodes: fx.Node) -> tuple[torch.Tensor, ...]:
    return tuple(node.meta["val"] for node in nodes)


def _takes_any_images(node: fx.Node) -> bool:
    call = _convolution(node)
    if call is not None:
        return call.is_faster()
    if node.target is aten.native_group_norm.default:
        return _is_laid_out_as_image(fake(node.args[0]))
    return node.target in TAKE_IMAGES or (isinstance(node.meta["val"], torch.Tensor) and takes_any_layout(node))


def _is_laid_out_as_image(value: torch.Tensor) -> bool:
    """Returns whether a tensor has one of the layouts that torch's kernel of a group norm accepts."""
    return value.is_contiguous() or (value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last))


def _lay_out(graph: fx.Graph, arguments: Mapping[fx.Node, torch.Tensor], results: int | None, count: _Count) -> None:
    """Changes the layout of images in a graph; the first `results` outputs, or all, keep their layout.

    `arguments` are inputs of the graph with their new fake values.
    """
    layouts = NewLayouts(graph, _takes_any_images, several=True)
    for node, new_value in arguments.items():
        layouts.set(node, new_value)
    converted: dict[fx.Node, fx.Node] = {}
    positions = {node: position for position, node in enumerate(graph.nodes)}
    for node in positions:
        if node.op != "call_function":
            continue
        if SHAPE_ONLY.get(node.target) == 1 and node.args[0] in layouts.traced:
            node.args = (node.args[0], _substitute(node, layouts.traced, positions), *node.args[2:])
        call = _convolution(node)
        if call is not None and call.is_faster():
            count.images += sum(map(torch.numel, call.images))
            for image in call.arguments:
                _convert_image(layouts, node, image, converted)
        if node.target is aten.clone.default and node.args[0] in layouts.traced:
            node.kwargs = {}  # the clone would keep the old layout
        layouts.propagate(node)
    output = graph.output_node()
    returned: Any = output.args[0]
    restored = [layouts.restored(output, node) for node in returned[:results]]
    output.args = ((*restored, *returned[len(restored) :]),)
    copies = {*converted.values(), *(copy for source, copy in layouts.copies.items() if not _is_of_weight(source))}
    count.copied += sum(copy.meta["val"].numel() for copy in copies)


def _substitute(node: fx.Node, converted: Iterable[fx.Node], positions: Mapping[fx.Node, int]) -> Any:
    """Returns an image to replace the image that a gradient of pooling takes only for layout and shape.

    The substitute is a channels-last image with the same shape that stays alive anyway. If none exists, returns the
    present argument.
    """
    present: Any = node.args[1]
    expected = (present.meta["val"].shape, present.meta["val"].dtype)
    for image in converted:
        value, last_use = image.meta["val"], max(positions.get(user, 0) for user in (*image.users, image))
        if isinstance(value, torch.Tensor) and (value.shape, value.dtype) == expected and last_use > positions[node]:
            return image
    return present


def _convert_image(layouts: NewLayouts, node: fx.Node, image: fx.Node, converted: dict[fx.Node, fx.Node]) -> None:
    """Gives a convolution an image with channels last."""
    value = image.meta["val"]
    _, channels, height, width = value.shape
    strides = (channels * height * width, 1, width * channels, channels)
    if value.stride() == strides:  # a single channel fits both layouts, and must not decide the layout of others
        return
    if image not in converted:
        with layouts.graph.inserting_before(node):
            converted[image] = laid_out(layouts.graph, image, empty_as(value, range(4), strides))
        layouts.traced[converted[image]] = value
    node.replace_input_with(image, converted[image])


def _is_of_weight(source: fx.Node) -> bool:
    """Returns whether a value is the gradient of a weight; torch restores the layout of such gradients in any case."""
    producer = source.args[0] if source.args else None
    is_backward = isinstance(producer, fx.Node) and producer.target is aten.convolution_backward.default
    return bool(is_backward and source.args[1] == 1)
