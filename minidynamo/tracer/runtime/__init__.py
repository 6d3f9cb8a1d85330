"""Functions that residual programs call at run time.

Owns held arguments, rollback, and the handling of errors of a graph.
Does not own the text of residual programs (`capture/residual.py`).
Enter at `rollback.revive`, `graph_failures.Failure`.
"""
