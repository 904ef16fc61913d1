"""`--json`: stdout is one JSON document, and all else that is printed goes to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any


def show(content: Any) -> None:
    """Print the document. Not-a-number and infinity, which JSON lacks, are null."""
    print(json.dumps(_plain(content), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


@contextmanager
def apart(wanted: bool) -> Iterator[None]:
    """Send to stderr what this process and its children print meanwhile, if that is wanted."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
