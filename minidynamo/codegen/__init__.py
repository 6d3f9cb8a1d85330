"""Turns an ATen graph into fused kernels and the host program that launches them."""
