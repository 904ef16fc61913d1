from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from sslengine.config import facts
from sslengine.data.augment.backend import build_backend
from sslengine.data.decode.decoding import Decoder
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError
from tests.data.augment.photos import photo


def test_auto_is_what_the_config_derives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "find_spec", lambda name: None)
    assert build_backend("auto").name == "pil"


def test_what_there_is_not_is_told_with_its_key() -> None:
    with pytest.raises(ConfigError, match="AUGMENT_BACKEND: expected .* mean 'pil'"):
        build_backend("pli")


def test_decoding_is_the_decoders() -> None:
    file = BytesIO()
    photo(0).save(file, "PNG")
    decoded = build_backend("pil").decode(file.getvalue(), Decoder.build(SplitOptions(), "TRAIN"))
    assert (np.asarray(decoded) == np.asarray(photo(0))).all()
