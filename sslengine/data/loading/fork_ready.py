"""Imported last by the process that loader workers are forked from.

Imported modules share their memory with the workers until a worker writes to it, and Python's
garbage collector writes to every object that it scans. So the objects that exist now are excluded
from later collections.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
