"""Trackers: the tracer's records of Python values, one file per family.

Owns records without behaviour. Does not own operations on values (`tracer/`). Enter at `base.VariableTracker`.
"""
