"""The ways to compute operations: Pillow, numba."""
