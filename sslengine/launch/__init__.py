"""From the command line to running processes."""
