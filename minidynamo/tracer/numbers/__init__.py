"""Numbers that differ from call to call.

Owns arithmetic, functions, formatting, and the numbers in tensors with a single element.
Does not own symbols and the decisions about them (`guards/shapes.py`).
Enter at `arithmetic.binary`.
"""
