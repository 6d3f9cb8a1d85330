"""Plain Python twins of functions written in C, which are traced instead of them.

A twin is ordinary Python with the signature and the results of what it stands for, and knows nothing of trackers; the
registry maps the one to the other. What a twin cannot do it hands to `cannot_trace`, which breaks the graph. Files are
named after the module of the originals, or after the built-in class whose methods they are.
"""
