"""When each buffer is allocated, reused and freed.

Owns the host program as data, and the plan of its memory.
Does not own its text (`printers/host.py`).
Enter at `planner.plan_memory`.
"""
