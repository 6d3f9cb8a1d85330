"""Orders of dimensions in memory.

Owns channels last for convolutions, layouts of gradients.
Does not own strides of single results (`graph/layouts.py`).
Enter at `channels_last.lay_out_channels_last`, `dim_order.restride_tangents`.
"""
