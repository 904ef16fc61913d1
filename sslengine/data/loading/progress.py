"""What takes long says, in the log and on the screen, how far it is."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("sslengine")

EVERY = 10.0  # seconds


class Progress:
    """Nothing is said of what is done within the first ten seconds."""

    def __init__(self, doing: str, total: int = 0) -> None:
        self._doing, self._of = doing, f" of {total:,}" if total else ""
        self._next = time.monotonic() + EVERY

    def tell(self, done: int, things: str) -> None:
        """So many things are done by now."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            text = f"{self._doing}: {done:,}{self._of} {things} so far"
            log.info("%s", text, extra={"on_screen": True})
