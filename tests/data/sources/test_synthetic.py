from __future__ import annotations

import numpy as np
import pytest

from sslengine.data.options import split_options
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.shapes import ShapesSource
from sslengine.data.sources.synthetic import SyntheticSource
from sslengine.errors import DataError


def source(**keys: object) -> SyntheticSource:
    return SyntheticSource(split_options(DEFAULT_GRAY_IMG_SIZE=24, **keys), "TRAIN")  # type: ignore[arg-type]


def test_grey_by_default_and_as_long_as_vissl() -> None:
    grey = source()
    assert len(grey) == 50_000
    assert (np.asarray(grey.image(7)) == 128).all()
    assert grey.image(7).size == (24, 24)
    assert set(grey.labels().tolist()) == {0}


def test_noise_is_drawn_from_the_index() -> None:
    noise, again = source(RANDOM_SYNTHETIC_IMAGES=True), source(RANDOM_SYNTHETIC_IMAGES=True)
    images = [noise.image(index).tobytes() for index in range(5)]
    assert len(set(images)) == 5
    assert images == [again.image(index).tobytes() for index in range(5)]


def test_labels_are_balanced() -> None:
    labelled = source(RANDOM_SYNTHETIC_LABELS=4)
    assert labelled.num_classes == 4
    assert np.bincount(labelled.labels()).tolist() == [12_500] * 4


def test_more_than_it_has_by_default() -> None:
    assert len(source(DATA_LIMIT=60_000)) == 60_000


@pytest.mark.parametrize("kind", [SyntheticSource, ShapesSource])
def test_a_limit_that_no_training_ends_is_refused(kind: type[DataSource]) -> None:
    with pytest.raises(DataError, match=r"config\.DATA\.TEST\.DATA_LIMIT: "):
        kind(split_options(DATA_LIMIT=99_999_999), "TEST")
