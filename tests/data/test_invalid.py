from __future__ import annotations

import logging
from typing import Any
from unittest.mock import MagicMock as Mock

import pytest

from sslengine.data.feed import FEWEST, LATEST, InvalidSamples
from sslengine.errors import DataError


def counter(max_share: float = 0.5, num_samples: int = 100_000) -> InvalidSamples:
    dataset: Any = Mock(__len__=lambda _: num_samples)
    dataset.name, dataset.why_unreadable = "{}.jpg".format, "{}.jpg (broken)".format
    return InvalidSamples("config.DATA.TRAIN", max_share, dataset, "another sample replaces each")


class Run:
    """Batches of ten samples, of which so many cannot be read."""

    def __init__(self, samples: InvalidSamples) -> None:
        self.samples, self.next = samples, 0

    def batches(self, count: int, bad: int) -> None:
        for _ in range(count):
            self.samples.note(10, list(range(self.next, self.next + bad)))
            self.next += 10


def test_the_first_is_told_all_are_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    samples = counter(num_samples=30)
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # an epoch, and the same again: nothing new
            Run(samples).batches(3, bad=2)
            samples.tell_count()
    assert samples.samples == {0, 1, 10, 11, 20, 21}
    first, *others, count = caplog.records
    assert first.message.startswith(
        "config.DATA.TRAIN: cannot read 0.jpg (broken). Such samples are counted, and the log names "
        "them; another sample replaces each."
    )
    assert [each.message.split()[3] for each in others] == [
        f"{number}.jpg" for number in (1, 10, 11, 20, 21)
    ]
    assert count.message.startswith("config.DATA.TRAIN: 6 of 30 samples could not be read so far")
    levels = [logging.WARNING, *[logging.INFO] * 5, logging.WARNING]
    assert [each.levelno for each in caplog.records] == levels


def test_not_one_can_be_read() -> None:
    run = Run(counter(max_share=1.0))
    run.batches(FEWEST // 10 - 1, bad=10)
    with pytest.raises(DataError, match=rf"none of the first {FEWEST} images can be read.*90.jpg"):
        run.batches(1, bad=10)


def test_more_than_the_share() -> None:
    Run(counter(max_share=0.3)).batches(400, bad=3)
    run = Run(counter(max_share=0.3))
    with pytest.raises(
        DataError,
        match=r"40% of the latest images cannot be read, more than "
        r"config.DATA.TRAIN.MAX_INVALID_SHARE=0.3. One of them: 90.jpg \(broken\)",
    ):
        run.batches(400, bad=4)
    assert run.next == FEWEST - 10  # no judgement on fewer


def test_all_may_be_bad_but_one_where_the_share_says_so() -> None:
    Run(counter(max_share=1.0)).batches(1000, bad=9)


def test_a_disk_that_dies_late_is_noticed_soon() -> None:
    """The share is that of the latest, not of all since the beginning."""
    run = Run(counter(max_share=0.5))
    run.batches(5000, bad=0)
    with pytest.raises(DataError, match=r"5\d% of the latest"):
        run.batches(1000, bad=10)
    assert run.next - 50_000 <= LATEST


def test_a_bad_hour_passes() -> None:
    run = Run(counter(max_share=0.5))
    for _ in range(20):
        run.batches(LATEST // 10, bad=0)
        run.batches(LATEST // 25, bad=10)
