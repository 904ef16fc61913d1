from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image, ImageOps

from sslengine.data.augment.drawing import draw_of
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.operations import Blur, Invert, Solarize
from sslengine.data.augment.pipeline import build_transform
from sslengine.data.augment.transform import GONE, Transform, probability
from sslengine.errors import ConfigError
from tests.data.augment.photos import photo


def test_a_probability_is_one() -> None:
    assert [probability(p) for p in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {wrong}"):
            probability(wrong)


class Drawn(Transform):
    def draw(self, size: Any) -> list[Operation]:
        return [Invert(), Solarize(size[0])]


class Plain:
    """No base at all."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.invert(image)

    def draw(self, size: Any) -> list[Operation]:
        return [Invert()]


class CalledAlone(Drawn):
    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.mirror(image)


def test_what_is_drawn_is_what_is_done() -> None:
    image = photo(0, 40, 30)
    assert Drawn()(image) == ImageOps.solarize(ImageOps.invert(image), 40)
    assert draw_of(Drawn())((40, 30)) == [Invert(), Solarize(40)]


def test_a_class_without_our_base_may_draw() -> None:
    assert draw_of(Plain())((2, 3)) == [Invert()]


def test_a_draw_that_is_less_derived_than_the_call_is_not_used() -> None:
    assert draw_of(CalledAlone()) is None


@pytest.mark.parametrize("flag", GONE)
def test_a_class_for_an_earlier_version_is_told_the_new_way(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plain, flag, True, raising=False)
    entry = {"name": f"{__name__}:Plain"}
    with pytest.raises(ConfigError, match=rf"TRANSFORMS.3 .*Plain.{flag} .*derive it from \w+"):
        build_transform(entry, "config.DATA.TRAIN.TRANSFORMS.3")


@dataclass(frozen=True)
class WeakBlur(Blur):
    def on_pil(self, image: Image.Image) -> Image.Image:
        return image


def test_who_changes_an_operation_gets_none_of_its_fast_ways() -> None:
    assert Blur.on_planes is not Operation.on_planes
    assert WeakBlur.on_planes is Operation.on_planes
