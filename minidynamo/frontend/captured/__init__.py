"""The capture of whole backwards.

Owns the blocks of `captured_backward`, the record of a backward as a Python function, the order of its statements. Does
not own torch's walk over the autograd graph (`compat/captured_backward.py`) and the functions that the record calls
(`graph/backward_calls.py`). Enter at `backward.captured_backward`, `tape.BackwardTape`.
"""
