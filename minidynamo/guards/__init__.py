"""Decides when a compiled entry may be reused.

Owns sources, guard kinds, symbols of sizes, the text of checks, and the record of an entry. Does not own the choice
among entries during a call (`frontend/dispatcher.py`). Enter at `guard.GuardKind`, `check.write_condition`,
`source.Source`, `shapes.Shapes`.
"""
