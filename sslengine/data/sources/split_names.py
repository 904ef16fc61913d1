"""What a split is called: in names of folders and files, and of the arrays of one file."""

from __future__ import annotations

# The first that is there.
SPLITS = {
    "TRAIN": ("train", "training"),
    "TEST": ("val", "validation", "valid", "dev", "test", "testing", "t10k"),
}
OF_ANY = frozenset(name for names in SPLITS.values() for name in names)
