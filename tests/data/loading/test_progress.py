from __future__ import annotations

import logging
import time

import pytest

from sslengine.data.loading.progress import EVERY, Progress


def test_told_every_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO, "sslengine"):
        progress, of_many = Progress("looking through /data"), Progress("writing", total=4000)
        for second in range(25):
            now = second * EVERY / 10
            progress.tell(second * 1000, "images")
        of_many.tell(1234, "images")
    assert caplog.messages == [
        "looking through /data: 10,000 images so far",
        "looking through /data: 20,000 images so far",
        "writing: 1,234 of 4,000 images so far",
    ]
