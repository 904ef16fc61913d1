from __future__ import annotations

from typing import Any

import pytest
from PIL import Image, ImageOps

from sslengine.data.augment.blur import ImgPilGaussianBlur
from sslengine.data.augment.pipeline import build_transform
from sslengine.data.augment.transform import GONE, Transform, probability
from sslengine.errors import ConfigError


def test_a_probability_is_one() -> None:
    assert [probability(p) for p in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {wrong}"):
            probability(wrong)


class Plain:
    """No base at all."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.invert(image)


class NotCalled(Transform):
    def draw(self, size: Any) -> list[Any]:
        return []


class DrawsOtherwise(ImgPilGaussianBlur):
    def draw(self, size: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("flag", GONE)
def test_a_class_for_an_earlier_version_is_told_the_new_way(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plain, flag, True, raising=False)
    entry = {"name": f"{__name__}:Plain"}
    with pytest.raises(ConfigError, match=rf"TRANSFORMS.3 .*Plain.{flag} .*derive it from \w+"):
        build_transform(entry, "config.DATA.TRAIN.TRANSFORMS.3")


@pytest.mark.parametrize("name", ["NotCalled", "DrawsOtherwise"])
def test_a_class_that_only_draws_is_refused_before_the_first_image(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"TRANSFORMS.3 .*{name} does not define `__call__`"):
        build_transform({"name": f"{__name__}:{name}"}, "config.DATA.TRAIN.TRANSFORMS.3")
