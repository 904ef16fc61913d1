"""A run's files on disk: written whole, found again, read without running code."""
