"""Heads: from a trunk's feature to what the loss reads. A head's arguments are its options."""
