from __future__ import annotations

from sslengine.models.trunks import classy
from sslengine.models.trunks.options import REGNETS


def test_every_published_regnet_is_there() -> None:
    theirs = {name for name in classy.MODEL_REGISTRY if name.startswith("regnet_")}
    assert set(REGNETS) == theirs
