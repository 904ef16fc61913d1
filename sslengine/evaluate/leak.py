"""Test images that are training images too: what they score says nothing of other images."""

from __future__ import annotations

from collections.abc import Iterator

from sslengine.evaluate.features import Rows, blocks


def note_of_leak(train: Rows, test: Rows, what: str) -> str:
    """Of rows that are equal to the bit; empty if there are none. what: the rows are of these."""
    count = count_copies(train, test)
    return f"{count} of {len(test)} test {what} are also training {what}" if count else ""


def count_copies(train: Rows, test: Rows) -> int:
    known = set(_hashes(train))
    return sum(each in known for each in _hashes(test))


def _hashes(features: Rows) -> Iterator[int]:
    for block in blocks(features):
        for row in block.float().cpu().numpy():
            yield hash(row.tobytes())
