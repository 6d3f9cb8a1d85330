"""Trackers of external values, one file per kind of value.

Owns the tracker of each kind of value, and its guards.
Does not own the choice of the kind (`wrap.py`).
Enter at `wrap.wrap`.
"""
