"""Plans the allocation, reuse and free of each buffer.

Owns the host program as data, and the plan of its memory.
Does not own the text of the host program (`printers/host.py`).
Enter at `planner.plan_memory`.
"""
