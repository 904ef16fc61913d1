"""Contracts at several ranks use the fork server of the other tests, which has imported torch."""

import pytest

from sslengine.testing import runs
from tests.ranks import RankPool


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "preload", lambda *_: RankPool.own_server())
