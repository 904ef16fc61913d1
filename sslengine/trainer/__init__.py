"""The loop over phases and steps; nothing else."""
