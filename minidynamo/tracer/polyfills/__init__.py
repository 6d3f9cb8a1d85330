"""Python twins of functions written in C, which are traced instead of them.

Owns plain Python functions with the signature and the results of what they replace.
Does not own trackers; where one is needed, `handlers/` answers.
Enter at `records.registry.polyfill`, `refusal.cannot_trace`.
"""
