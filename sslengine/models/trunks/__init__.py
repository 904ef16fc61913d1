"""Trunks: from images to named features. `base.py` is the contract."""
