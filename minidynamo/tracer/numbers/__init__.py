"""Numbers that differ from call to call.

Owns arithmetic, functions, formatting, and the numbers in tensors of one element.
Does not own symbols and what was decided of them (`guards/shapes.py`).
Enter at `arithmetic.binary`.
"""
