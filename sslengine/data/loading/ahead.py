"""A loader's batches, window after window, without a gap between two.

Workers end a window some batches before the step does, and would then have nothing to do until
the next one is asked for. Where it is known beforehand, they begin with it at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from sslengine.data.batch.collators import Batch
from sslengine.data.batch.samplers import BatchSampler
from sslengine.data.loading.loader import Loader

# An epoch, the first of its steps, and the one after the last.
Window = tuple[int, int, int]


class LoadedAhead:
    def __init__(self, loader: Loader, sampler: BatchSampler) -> None:
        self._loader, self._sampler = loader, sampler
        self._stream: Iterator[Batch] = iter(())
        self._left = 0  # batches of the current window
        self._next: Window | None = None

    def batches(self, *window: int) -> Iterator[Batch]:
        """Those of this window; loaded already if it is the one that was to come next."""
        if window != self._next or self._left:
            self._sampler.set_window(*window)
            self._stream = self._loader.batches()
        _, first, end = window
        self._next, self._left = None, end - first
        return self._of_window(self._stream, end - first)

    def then(self, *window: int) -> None:
        """The window expected after the current one; if it is not used, nothing is lost."""
        if self._next is None:  # else one has been said before, and is being loaded
            epoch, first, end = window
            self._sampler.then(epoch, first, end)
            self._next = epoch, first, end

    def _of_window(self, stream: Iterator[Batch], count: int) -> Iterator[Batch]:
        for _ in range(count):
            batch = next(stream, None)
            if batch is None:
                return
            if stream is self._stream:
                self._left -= 1
            yield batch
