"""Calls and operators, as Python's protocols define them.

Owns calls of functions and classes, operators, identity, and subscripts of tensors.
Does not own the meaning of one function (`handlers/`, `polyfills/`).
Enter at `call.call`, `operators.involves_tensor`, `construct.construct`.
"""
