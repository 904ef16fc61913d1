"""Samples that could not be read: the first is reported, others are logged and counted; too many of
them end the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from sslengine.errors import DataError

logger = logging.getLogger(__name__)

# The share is that of so many views: the latest, and no fewer than the first number.
FEWEST, LATEST = 100, 2000
NAMED = 1000  # in the log, at most


class InvalidSamples:
    """Those of one split, on one rank."""

    def __init__(
        self,
        where: str,
        max_share: float,
        num_samples: int,
        name: Callable[[int], str],
        why: Callable[[int], str],
        instead: str,
    ) -> None:
        """name: what to call a sample. why: the same and what is wrong with it, which reads it.
        instead: what becomes of it, in words."""
        self._where, self._max_share, self._name, self._why = where, max_share, name, why
        self._num_samples, self._instead = num_samples, instead
        self.samples: set[int] = set()
        self._told = 1  # how many of them were reported; the first has its own message
        self._one_was_valid = False
        self._batches: deque[tuple[int, int]] = deque()
        self._seen = self._invalid = 0  # in these batches

    def note(self, size: int, bad: Sequence[int]) -> None:
        """A batch of so many samples. bad: those that could not be read."""
        self._one_was_valid = self._one_was_valid or len(bad) < size
        self._count(len(bad), size)
        if not bad:
            return
        if not self.samples:
            logger.warning(
                "%s: cannot read %s. Such samples are counted, and the log names them; %s.",
                self._where,
                self._why(bad[0]),
                self._instead,
            )
            self.samples.add(bad[0])
        for sample in sorted(set(bad) - self.samples):
            if len(self.samples) < NAMED:
                logger.info("%s: cannot read %s either", self._where, self._name(sample))
            self.samples.add(sample)
        self._stop_if_too_many(bad[0])

    def tell_count(self) -> None:
        """After a pass over the data: if there are more of them than were reported before."""
        if len(self.samples) > self._told:
            self._told = len(self.samples)
            logger.warning(
                "%s: %d of %d samples could not be read so far; the log names them.",
                self._where,
                self._told,
                self._num_samples,
            )

    def _count(self, invalid: int, seen: int) -> None:
        self._batches.append((invalid, seen))
        self._invalid, self._seen = self._invalid + invalid, self._seen + seen
        while self._seen - self._batches[0][1] >= LATEST:
            invalid, seen = self._batches.popleft()
            self._invalid, self._seen = self._invalid - invalid, self._seen - seen

    def _stop_if_too_many(self, one: int) -> None:
        if not self._one_was_valid and len(self.samples) >= min(FEWEST, self._num_samples):
            raise DataError(
                f"{self._where}: none of the first {len(self.samples)} images can be read. "
                f"One of them: {self._why(one)}"
            )
        if self._seen >= FEWEST and self._invalid > self._max_share * self._seen:
            raise DataError(
                f"{self._where}: {self._invalid / self._seen:.0%} of the latest images cannot be "
                f"read, more than {self._where}.MAX_INVALID_SHARE={self._max_share:g}. "
                f"One of them: {self._why(one)}"
            )
