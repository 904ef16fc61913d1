"""The datasets of a run, and the classes that their labels are numbered by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sslengine.data.options import DataOptions, SplitOptions

# (split, in random order?, the run's classes so far) -> a feed
MakeFeed = Callable[[str, bool, Sequence[Any]], Any]


class Feeds:
    def __init__(
        self, make: MakeFeed, data: DataOptions, tested: bool, classes: Sequence[Any] | None
    ) -> None:
        """tested: there are test phases.

        classes: of a run that only tests, as TRAIN has them, if they are known; None: it trains.
        """
        self._make, self._others = make, dict[str, Any]()
        self._options = {"TRAIN": data.TRAIN, "TEST": data.TEST}
        trains = classes is None
        # Of the run: TRAIN's; of a run that only tests, without TRAIN's classes: TEST's.
        self.classes: list[Any] = list(classes or ())
        self.train = make("TRAIN", True, self.classes) if trains else None
        self.classes = self.classes or getattr(self.train, "classes", [])
        self.test = make("TEST", False, self.classes) if tested else None
        self.classes = self.classes or getattr(self.test, "classes", [])

    def options(self, split: str) -> SplitOptions:
        return self._options[split]

    @property
    def class_names(self) -> list[list[str]]:
        """By number, for each label source; empty where labels are numbers."""
        return [list(each.names) for each in self.classes]

    @property
    def for_training(self) -> Any:
        """The training set; in a run that only tests, the test set."""
        feed = self.train or self.test
        assert feed is not None
        return feed

    def of_phase(self, train: bool) -> Any:
        feed = self.train if train else self.test
        assert feed is not None
        return feed

    def in_order(self, split: str) -> Any:
        """Each sample once, as a test phase reads them."""
        if split == "TEST" and self.test is not None:
            return self.test
        if split not in self._others:
            self._others[split] = self._make(split, False, self.classes)
        return self._others[split]

    def close(self) -> None:
        """End the loader workers."""
        for feed in (self.train, self.test, *self._others.values()):
            if feed is not None:
                feed.close()
