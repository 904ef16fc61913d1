"""The ways to compute operations: Pillow, numba, the device."""
