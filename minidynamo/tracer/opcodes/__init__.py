"""A small function per opcode, one file per family.

Owns the effect of each instruction on the symbolic frame.
Does not own operators, calls and attributes (`calls/`, `attributes/`).
Enter at `table.opcode`.
"""
