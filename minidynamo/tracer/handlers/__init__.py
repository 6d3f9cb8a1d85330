"""Handlers: what calls of functions and methods mean while tracing, one file per family."""
