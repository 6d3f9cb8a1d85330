"""Lazy values: external values that are guarded only when the program reads them.

Owns the contents of external containers, facts about lazy values, and partial reads.
Does not own how a value is wrapped after it is read (`wrappers/`).
Enter at `wrap.lazy`.
"""
