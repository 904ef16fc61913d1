"""Heads: modules that map a trunk's feature to the model's output. Their arguments are options."""
