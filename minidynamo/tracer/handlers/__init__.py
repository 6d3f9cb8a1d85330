"""What calls of functions and methods mean while tracing, one file per family.

Owns one small function per function or method, registered in a table (`records/registry.py`).
Does not own Python twins of functions in C (`polyfills/`).
Enter at `records.registry.function`, the decorator that fills the table.
"""
