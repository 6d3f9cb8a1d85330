"""Nouns: what the tracer knows of a value, one file per family.

Owns records without behaviour.
Does not own verbs: what happens to values is in `tracer/`.
Enter at `base.VariableTracker`.
"""
