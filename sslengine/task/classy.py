"""Classy Vision's `ClassyTask`, the one class that we take from it.

Importing it imports its deprecated video transforms, whose warnings do not concern users.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from classy_vision.tasks.classy_task import ClassyTask

__all__ = ["ClassyTask"]
