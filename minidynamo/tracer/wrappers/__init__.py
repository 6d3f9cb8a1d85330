"""What is known of a value from outside the trace, one file per kind of value.

Owns the tracker of each kind of value, and its guards.
Does not own the choice of the kind (`wrap.py`).
Enter at `wrap.wrap`.
"""
