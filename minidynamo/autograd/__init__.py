"""From a torch-level graph to forward, backward and inference graphs of ATen operations, and their runtime."""
