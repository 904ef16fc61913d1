"""VISSL's benchmarks as engines: each has the name of VISSL's tool, and reads VISSL's keys."""
