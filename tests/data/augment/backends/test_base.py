from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from sslengine import data  # noqa: F401 - declares the back-ends
from sslengine.config import facts
from sslengine.data.augment.backends.base import build_backend
from sslengine.data.augment.backends.pil import PilBackend
from sslengine.data.decode.decoding import Decoder
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError, UnknownNameError
from tests.data.augment.photos import photo


def test_by_name() -> None:
    assert type(build_backend("pil")) is PilBackend
    assert type(build_backend("sslengine.data.augment.backends.pil:PilBackend")) is PilBackend


def test_auto_is_what_the_config_derives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "find_spec", lambda name: None)
    assert type(build_backend("auto")) is PilBackend


def test_what_there_is_not_is_told_with_its_key() -> None:
    with pytest.raises(ConfigError, match="AUGMENT_BACKEND: expected one of .* mean 'pil'"):
        build_backend("pli")
    with pytest.raises(UnknownNameError, match="AUGMENT_BACKEND: importing 'no.such' fails"):
        build_backend("no.such:Backend")


def test_decoding_is_the_decoders() -> None:
    file = BytesIO()
    photo(0).save(file, "PNG")
    decoded = PilBackend().decode(file.getvalue(), Decoder.of(SplitOptions(), "TRAIN"))
    assert (np.asarray(decoded) == np.asarray(photo(0))).all()
