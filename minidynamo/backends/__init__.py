"""From a captured graph to a callable.

Owns the registry of backends, and their compiled graphs on disk. Does not own the compilation itself (`autograd/`,
`codegen/`). Enter at `registry.resolve`, `registry.register_backend`.
"""
