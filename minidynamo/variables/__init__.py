"""Nouns: what the tracer knows of a value. One file per family; verbs live in `minidynamo.tracer`."""
