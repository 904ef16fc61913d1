"""The built-in generated: the same for ever, balanced, and not to be told apart by pixels."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from sslengine.data.options import SplitOptions, split_options
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.generated import (
    CLASSES,
    ShapesSource,
    SyntheticSource,
    class_of,
    draw_shape,
    mask_of_shape,
)
from sslengine.errors import DataError


def source(split: str = "TRAIN", side: int = 32, **keys: object) -> ShapesSource:
    return ShapesSource(SplitOptions(DEFAULT_GRAY_IMG_SIZE=side, **keys), split)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("split", "side", "upright", "digest"),
    [
        ("TRAIN", 48, False, "59f4806037313a2c"),
        ("TEST", 33, False, "5ccfd7a5a40021e0"),
        ("TRAIN", 48, True, "c77806d6d82007da"),
    ],
)
def test_images_are_those_of_every_other_machine(
    split: str, side: int, upright: bool, digest: str
) -> None:
    pixels = b"".join(draw_shape(split, index, side, upright).tobytes() for index in range(20))
    assert hashlib.sha256(pixels).hexdigest()[:16] == digest


def test_upright_shapes_are_a_source() -> None:
    (found,) = build_sources(
        SplitOptions(DATA_SOURCES=["upright_shapes"], DEFAULT_GRAY_IMG_SIZE=40), "TEST"
    )
    assert np.array_equal(np.asarray(found.image(3)), draw_shape("TEST", 3, 40, upright=True))
    assert not np.array_equal(np.asarray(found.image(3)), draw_shape("TEST", 3, 40))
    assert found.label(13) == 3


def mean_edges(number: int, upright: bool) -> np.ndarray:
    """Where pixels of a class differ from their neighbours, on average; nothing prefers a side."""
    images = np.stack(
        [
            draw_shape("TRAIN", 10 * index + number, 32, upright).astype(float)
            for index in range(150)
        ]
    ).mean(3)
    inner = images[:, 1:-1, 1:-1]
    around = (images[:, 2:, 1:-1], images[:, :-2, 1:-1], images[:, 1:-1, 2:], images[:, 1:-1, :-2])
    mean: np.ndarray = np.mean([np.abs(inner - each) for each in around], axis=(0, 1))
    return mean


@pytest.mark.parametrize("number", [5, 9])  # triangle and chevron point up
def test_only_upright_shapes_look_different_when_turned(number: int) -> None:
    differences = {
        upright: [
            np.abs(np.rot90(mean, turns) - mean).mean() / mean.std()
            for mean in [mean_edges(number, upright)]
            for turns in (1, 2, 3)
        ]
        for upright in (True, False)
    }
    assert min(differences[True]) > 2 * max(differences[False])


@pytest.mark.parametrize(("split", "length"), [("TRAIN", 5000), ("TEST", 2000)])
def test_classes_are_balanced(split: str, length: int) -> None:
    found = source(split)
    assert (len(found), found.num_classes) == (length, 10)
    assert np.bincount(found.labels()).tolist() == [length // 10] * 10


def test_no_random_stream_is_touched() -> None:
    def streams() -> str:
        numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
        return f"{random.getstate()} {numpy} {torch.get_rng_state().tolist()}"

    before = streams()
    source().image(5)
    assert streams() == before


def test_an_image_that_is_kept_is_the_image_drawn() -> None:
    kept = source()
    first = kept.image(4)
    first.paste((0, 0, 0), (0, 0, 32, 32))  # what a transform of the user may do
    assert np.array_equal(np.asarray(kept.image(4)), draw_shape("TRAIN", 4, 32))


@pytest.mark.parametrize("number", range(10))
def test_outlines_fit_and_textures_show_both_inks(number: int) -> None:
    outline, texture = CLASSES[number]
    line = np.linspace(-1.5, 1.5, 301)
    x, y = np.meshgrid(line, line)
    inside = outline(x, y) < 0
    assert 1 < inside.mean() * 9 < 3.5  # of an area of 4
    assert max(abs(x[inside]).max(), abs(y[inside]).max()) < 1.35
    second = texture(4 * x, 4 * y)[inside] > 0
    plain = texture is CLASSES[2][1]
    assert plain or 0.15 < second.mean() < 0.85


def test_pixels_say_little_about_the_class() -> None:
    train, test = (
        np.stack([draw_shape(split, index, 32).ravel() / 127.5 - 1 for index in range(count)])
        for split, count in (("TRAIN", 1500), ("TEST", 500))
    )
    judge = KNeighborsClassifier(20, metric="cosine", algorithm="brute")
    judge.fit(train, [class_of(index) for index in range(1500)])
    assert 0.1 < judge.score(test, [class_of(index) for index in range(500)]) < 0.35


def test_a_mask_is_where_the_shape_is() -> None:
    """A disc that lies within the image has the area of its width."""
    inside = 0
    for index in range(0, 200, 10):
        mask = mask_of_shape("TRAIN", index, 96)
        assert set(np.unique(mask)) == {0, 1}
        high, wide = ((mask > 0).any(axis=axis).sum() for axis in (1, 0))
        edge = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        if not edge.any():
            inside += 1
            assert abs(int(high) - int(wide)) <= 1
            assert (mask > 0).sum() == pytest.approx(np.pi / 4 * high * wide, rel=0.03)
    assert inside > 3
    assert mask_of_shape("TEST", 13, 32).max() == 4


def synthetic(**keys: object) -> SyntheticSource:
    return SyntheticSource(split_options(DEFAULT_GRAY_IMG_SIZE=24, **keys), "TRAIN")  # type: ignore[arg-type]


def test_grey_by_default_and_as_long_as_vissl() -> None:
    grey = synthetic()
    assert len(grey) == 50_000
    assert (np.asarray(grey.image(7)) == 128).all()
    assert grey.image(7).size == (24, 24)
    assert set(grey.labels().tolist()) == {0}


@pytest.mark.parametrize("kind", [SyntheticSource, ShapesSource])
def test_a_limit_that_no_training_ends_is_refused(kind: type[DataSource]) -> None:
    with pytest.raises(DataError, match=r"config\.DATA\.TEST\.DATA_LIMIT: "):
        kind(split_options(DATA_LIMIT=99_999_999), "TEST")
