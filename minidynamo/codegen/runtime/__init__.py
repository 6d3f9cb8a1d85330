"""Builds, loads, caches and launches kernels."""
