"""Which samples there are: an index of files, a subset of them, their classes and labels."""
