"""Imported last by the process that loader workers are forked from.

What it has imported is shared with the workers, until one of them writes to it; and Python's
garbage collector writes to every object that it looks at. So nothing that is here now is looked
at again.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
