"""What a run tells: to the screen, to files, to TensorBoard. Rank 0 only, but for log files."""
