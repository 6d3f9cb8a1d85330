"""Values that are rebuilt after a graph has run, one file per family.

Owns the statements that build values and replay side effects.
Does not own the choice of values to rebuild (`capture/residual.py`).
Enter at `rebuilder.Rebuilder`.
"""

from minidynamo.tracer.reconstruct import callables, containers, iterators, objects

__all__ = ["callables", "containers", "iterators", "objects", "sets"]
