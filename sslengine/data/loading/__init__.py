"""Datasets, loader workers, and the way of a batch to the device."""
