"""Augmentation as a plan: what is drawn is one thing, how pixels are made another."""
