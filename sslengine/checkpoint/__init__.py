"""A run's checkpoints: written atomically, found again, read without running code."""
