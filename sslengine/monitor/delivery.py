"""Each writer gets each record; one that fails, such as a tracker whose server is away, does not
end a run of days.

At its first record it does: nothing is lost yet, and it is the writer's code that is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sslengine.errors import SSLEngineError
from sslengine.monitor.writers import Record, Writer

log = logging.getLogger("sslengine")


class Delivery:
    def __init__(self) -> None:
        # By the id of a writer that took a record once: did it take the last one?
        self._took: dict[int, bool] = {}

    def hand_out(self, record: Record, writers: Sequence[Writer]) -> None:
        for writer in writers:
            try:
                writer.write(record._replace(values=dict(record.values)))
                self._took[id(writer)] = True
            except SSLEngineError:
                raise
            except Exception as error:
                if id(writer) not in self._took:
                    raise
                self._report(writer, error)

    def _report(self, writer: Writer, error: Exception) -> None:
        """Once, until it works again."""
        if self._took[id(writer)]:
            log.error(
                "The writer %s failed: %s: %s. Training continues; it gets further records.",
                type(writer).__name__, type(error).__name__, error, exc_info=error,
            )  # fmt: skip
        self._took[id(writer)] = False

    @staticmethod
    def close(writers: Sequence[Writer]) -> None:
        """All of them: the others have their records on the disk."""
        for writer in writers:
            try:
                writer.close()
            except Exception as error:
                log.error(
                    "The writer %s could not be closed: %s: %s. Its last records may be missing.",
                    type(writer).__name__, type(error).__name__, error, exc_info=error,
                )  # fmt: skip
