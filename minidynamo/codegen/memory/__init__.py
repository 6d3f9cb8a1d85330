"""Decides when each buffer is born, reused and freed."""
