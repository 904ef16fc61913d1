"""Noise and dropped channels, on arrays and on images of Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.data.augment import noise
from sslengine.data.augment.image import NO_LIMITS, Limits, make_rgb
from sslengine.data.augment.noise import (
    ChannelDrop,
    GaussianNoise,
    add_noise,
    draw_channels,
    drop_channels,
)


@pytest.mark.parametrize(
    ("dtype", "limits", "spread"),
    [("uint8", None, 255), ("uint16", None, 65535), ("float32", (-50.0, 150.0), 200),
     ("float32", None, 60)],
)  # fmt: skip
def test_the_noise_has_its_share_of_the_range(
    dtype: str, limits: tuple[float, float] | None, spread: float
) -> None:
    pixels = np.full((80, 90, 5), 100, dtype)
    pixels[0, 0, 0], pixels[0, 0, 1] = 70, 130  # the range, where nothing else says it
    if dtype == "uint16":
        pixels *= 256
    given = Limits(*limits) if limits else NO_LIMITS
    made = add_noise(pixels, 0.03, 4, given)
    added = made.astype(np.float64) - pixels
    assert made.dtype == pixels.dtype
    assert added.std() == pytest.approx(0.03 * spread, rel=0.02)
    assert abs(added.mean()) < 0.03 * spread / 40
    across = np.corrcoef(added.reshape(-1, 5), rowvar=False) - np.eye(5)
    assert np.abs(across).max() < 0.06  # each value of its own
    assert np.array_equal(made, add_noise(pixels, 0.03, 4, given))
    assert not np.array_equal(made, add_noise(pixels, 0.03, 5, given))


def test_noise_stays_within_the_limits() -> None:
    ends = np.array([[[0.0, 1.0]]], np.float32).repeat(500, 0)
    made = add_noise(ends, 0.5, 0, Limits(0.0, 1.0))
    assert (made.min(), made.max()) == (0, 1)
    black = Image.new("RGB", (30, 30))
    assert np.asarray(add_noise(black, 0.1, 1)).min() == 0


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_images_of_pillow(mode: str) -> None:
    channels = len(mode)
    values = np.random.default_rng(0).integers(0, 256, (9, 7, channels), np.uint8)
    image = Image.fromarray(values if channels > 1 else values[..., 0])
    for operation, *drawn in ((add_noise, 0.1, 3), (drop_channels, 0.6, "mean", 3)):
        made = operation(image, *drawn)
        assert (made.mode, made.size) == (mode, (7, 9))
        expected = operation(values, *drawn)
        np.testing.assert_array_equal(np.asarray(made).reshape(values.shape), expected)
        if mode == "RGB":
            np.testing.assert_array_equal(operation(make_rgb(image), *drawn), expected)


@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_a_channel_is_dropped_as_often_as_it_says(fill: str) -> None:
    pixels = np.random.default_rng(0).normal(50, 9, (4, 5, 13)).astype(np.float32)
    means = pixels.astype(np.float64).mean((0, 1))
    gone = []
    for seed in range(400):
        made = drop_channels(pixels, 0.3, fill, seed)
        changed = (made != pixels).any((0, 1))
        expected = np.where(changed, means if fill == "mean" else 0, pixels)
        np.testing.assert_allclose(made, expected, rtol=1e-6)
        gone.append(changed)
    assert np.abs(np.mean(gone, 0) - 0.3).max() < 0.1  # 4 standard deviations
    assert np.mean(gone) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_one_channel_always_stays(channels: int) -> None:
    left = [~draw_channels(channels, 1.0, seed) for seed in range(60)]
    assert {each.sum() for each in left} == {1}
    assert np.any(left, 0).all()  # not always the same


def test_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deviation from its range, and another seed for each image."""
    drawn: list[tuple[float, int]] = []
    seeds: list[int] = []
    monkeypatch.setattr(noise, "add_noise", lambda image, std, seed, _: drawn.append((std, seed)))
    monkeypatch.setattr(noise, "drop_channels", lambda *given: seeds.append(given[3]))
    torch.manual_seed(0)
    for _ in range(800):
        GaussianNoise([0.1, 0.3], p=0.25)(None)
    assert len(drawn) == pytest.approx(200, abs=50)
    stds = [std for std, _ in drawn]
    assert 0.1 <= min(stds) < 0.12
    assert 0.28 < max(stds) <= 0.3
    assert len({seed for _, seed in drawn}) == len(drawn)
    for _ in range(50):
        ChannelDrop()(None)
    assert len(set(seeds)) == 50
