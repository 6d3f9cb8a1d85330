"""Runs operations on tensors without data, with eager's results.

Owns the fake tensor mode, strides, meta functions, dtypes of gradients. Does not own fake tensors of one trace
(`tracer/graph/fake_tensors.py`). Enter at `mode.FakeTensorMode`.
"""
