"""Owns what must be settled before torch is imported: how threads of kernels wait. `tests/conftest.py` has the rest."""

import os

# The processes of a test run share the cores: threads that wait for the next kernel sleep instead of spinning, which
# took up to four times the CPU time of what they waited for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
