"""From the bytes of a file to the values of its pixels."""
