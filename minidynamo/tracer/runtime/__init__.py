"""What residual programs call at run time.

Owns held arguments, rollback, and what is done when a graph raises.
Does not own the text of residual programs (`capture/residual.py`).
Enter at `rollback.revive`, `graph_failures.Failure`.
"""
