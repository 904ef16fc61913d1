"""Test images that are training images too: what they score says nothing of other images."""

from __future__ import annotations

from collections.abc import Iterator

from sslengine.evaluation.features import Rows, blocks


def note_of_leak(train: Rows, test: Rows, what: str) -> str:
    """Of rows that are equal to the bit; empty if there are none. what: the rows are of these."""
    known = set(_hashes(train))
    count = sum(each in known for each in _hashes(test))
    if not count:
        return ""
    return (
        f"{count} of {len(test)} test {what} equal a training one: they are found by themselves. "
        f"Take other images for one of them"
    )


def _hashes(features: Rows) -> Iterator[int]:
    for block in blocks(features):
        for row in block.float().cpu().numpy():
            yield hash(row.tobytes())
