"""Trunks: networks that map images to named features. `base.py` is their interface."""
