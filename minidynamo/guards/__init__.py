"""Says when a compiled entry may be reused: sources, guards, their text, and the entries themselves."""
