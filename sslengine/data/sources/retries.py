"""Repeat reads that fail, with a longer wait before each attempt."""

from __future__ import annotations

import time
from collections.abc import Callable

from sslengine.data.sources.regular_file import NotRegularError

# What another attempt does not change.
FINAL = (
    FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotRegularError,
)  # fmt: skip


def retried(read: Callable[[], bytes], retries: int, wait: float) -> bytes:
    """What `read` gives. wait: seconds before the first of the retries; it doubles each time."""
    waits = [wait * 2**number for number in range(retries)]
    for seconds in waits:
        try:
            return read()
        except FINAL:
            raise
        except OSError:
            time.sleep(seconds)
    try:
        return read()
    except FINAL:
        raise
    except OSError as error:
        tried = f"tried {retries + 1} times in {sum(waits):g} s"
        raise OSError(error.errno, f"{error.strerror or error} ({tried})") from error
