"""Values from outside that are guarded only when the program reads them.

Owns lazy values, lazy containers, and reads of a part of a value.
Does not own how a value is wrapped once it is read (`wrappers/`).
Enter at `lazy_value.realize`.
"""
