"""Measures minidynamo against eager PyTorch and torch.compile, side by side in one run: `python -m benchmarks`."""
