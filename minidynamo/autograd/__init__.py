"""Turns a captured graph into forward and backward graphs and runs them under torch autograd."""
