from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sslengine.data.pixel_values import PixelRange


def in_8_bits(given: Any, values: Any) -> list[int]:
    made = PixelRange.parse(given)
    assert made is not None
    return made.to_8_bits(np.asarray(values), np.asarray(values)).tolist()


def test_a_window_of_twelve_bits_keeps_256_levels() -> None:
    values = np.arange(4096, dtype=np.uint16)
    made = in_8_bits([0, 4095], values)
    assert made == [round(255 * value / 4095) for value in range(4096)]
    assert len(set(made)) == 256
    assert len(set(in_8_bits("type", values))) == 17  # what nobody is given without asking


def test_beyond_the_window_is_black_or_white() -> None:
    assert in_8_bits([-100, 300], np.array([-1024, -100, 100, 300, 3071], np.int16)) == [
        0, 0, 128, 255, 255,
    ]  # fmt: skip
    assert in_8_bits([0, 1], np.array([0.0, 0.2, 1.0, 1.5])) == [0, 51, 255, 255]


def test_of_each_image_its_own() -> None:
    assert in_8_bits("image", np.array([-5, 0, 5], np.int16)) == [0, 128, 255]
    assert in_8_bits("image", np.array([7, 7], np.uint16)) == [0, 0]
    values = np.append(np.arange(101), 10**6)
    low, high = np.percentile(values, 10), np.percentile(values, 90)
    expected = [round(255 * min(max((v - low) / (high - low), 0), 1)) for v in values]
    assert in_8_bits(["10%", "90%"], values) == expected


def test_of_the_type() -> None:
    assert in_8_bits("type", np.array([-32768, 32767], np.int16)) == [0, 255]
    assert in_8_bits("type", np.array([0, 2**31], np.uint32)) == [0, 128]
    with pytest.raises(ValueError, match="float32 has no greatest value"):
        in_8_bits("type", np.zeros(3, np.float32))


@pytest.mark.parametrize("given", ["image", ["1%", "99%"], [0, 1]])
def test_what_is_not_finite(given: Any) -> None:
    with pytest.raises(ValueError, match="not finite"):
        in_8_bits(given, [0.0, np.nan])


def test_what_may_be_given() -> None:
    assert PixelRange.parse("") is None
    for wrong in ("auto", [0], [1, 0], [0, "99%"], ["1%", "101%"], ["9%", "1%"], 255, ["a%", "b%"]):
        with pytest.raises(ValueError, match=r"expected|could not convert"):
            PixelRange.parse(wrong)
