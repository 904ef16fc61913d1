"""Evaluate features by their labels, independent of a model."""
