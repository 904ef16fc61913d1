"""From a command to running processes."""
