"""What a page shows of data, and the numbers and curves that it draws."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.report import data_check
from sslengine.report.content import Fact
from sslengine.report.data_check import LEAK, find_facts
from sslengine.report.parts import Album
from sslengine.report.scale import (
    Axis,
    fit_axis,
    format_number,
    format_points,
    keep_records,
    smooth_series,
)
from tests.config.recipes import resolved
from tests.report.image_runs import EACH, on_disk, write_classes


def _facts(album: Album, **changes: Any) -> dict[str, Fact]:
    data = read(resolved(**changes).config, DataOptions)
    datasets = {
        split: SSLDataset(getattr(data, split), split, 0)
        for split in ("TRAIN", "TEST")
        if getattr(data, split).DATA_SOURCES
    }
    return {each.what: each for each in find_facts(datasets, album)}


def test_what_is_odd_is_counted_and_shown(tmp_path: Path) -> None:
    images = write_classes(tmp_path / "images", EACH)
    test = write_classes(tmp_path / "test", 2, first=1)
    shutil.copy(images / "red" / "0.png", images / "red" / "twin.png")
    shutil.copy(images / "blue" / "3.png", test / "red" / "known.png")
    (test / "red" / "broken.png").write_bytes(b"no image")
    Image.new("RGBA", (20, 20), (1, 2, 3, 40)).save(images / "blue" / "glass.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20), "green").save(images / "blue" / "turned.jpg", exif=exif)
    album = Album()
    found = _facts(album, **on_disk(images), **on_disk(test, "TEST"))
    thumbs = album.join()
    assert thumbs is not None

    def shown(what: str) -> list[str]:
        return [thumbs.names[place] for place in found[what].thumbs]

    assert found["training images"].value == "19"
    assert found["test images"].value == "6"
    assert found["training images: largest class"].value == "blue, 10 images"
    assert found["training images: opened"].value == "19"
    assert found["training images: copies"].value == "1"
    assert shown("training images: copies") == ["red/twin.png", "red/0.png"]
    assert shown("training images: transparent") == ["blue/glass.png"]
    assert shown("training images: rotated") == ["blue/turned.jpg"]
    assert found["test images: unreadable"].value == "1"
    assert "broken.png" in found["test images: unreadable"].advice
    assert "small" in found["training images: shorter side"].advice
    assert found["test images: shorter side"].advice == ""  # it is advice for training
    leak = found["test images that are training images"]
    assert (leak.value, leak.advice) == ("1", LEAK)
    assert shown(leak.what) == ["red/known.png"]


def test_of_many_images_some_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_check, "OPENED", 24)
    found = _facts(Album(), **on_disk(write_classes(tmp_path / "images", 15)))
    assert found["training images: opened"].value == "24"
    assert found["training images"].value == "30"


def test_without_classes_none_are_counted(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "one.png")
    found = _facts(Album(), **on_disk(tmp_path))
    assert "training images: classes" not in found
    assert found["training images: shorter side"].value == "20 to 20, median 20"


@pytest.mark.parametrize(
    ("size", "count"), [((32, 32), 500), ((1000, 1000), 100), ((4000, 3000), 12)]
)
def test_of_large_images_fewer_are_opened(size: tuple[int, int], count: int) -> None:
    source = SimpleNamespace(image=lambda row: Image.new("RGB", size))
    assert data_check.choose_number(source, range(5000)) == count


# ---- Numbers in drawings: round steps, short texts, series that are thinned and smoothed.


FINITE = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.5512, "2.551"), (79.6, "79.6"), (1024.3, "1,024"), (3.39e-8, "3.39e-8"), (0.0875, "0.0875"),
     (1.2e9, "1.2e9"), (0, "0"), (-0.8192, "-0.8192"), (math.nan, "NaN")],
)  # fmt: skip
def test_numbers_have_the_digits_that_count(value: float, text: str) -> None:
    assert format_number(value).replace("\N{MINUS SIGN}", "-") == text


def test_a_difference_of_nearly_nothing_has_no_minus() -> None:
    assert format_points(-0.02) == "0.0"
    assert format_points(1.25, signed=True) == "+1.2"


@given(FINITE, FINITE)
def test_steps_of_an_axis_are_1_2_or_5(one: float, other: float) -> None:
    axis = fit_axis(min(one, other), max(one, other), 0, 100)
    ticks = axis.ticks(5)
    assert 1 <= len(ticks) <= 6
    assert all(axis.low - 1e-6 <= value <= axis.high + 1e-6 * abs(axis.high) for value, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)
    if len(ticks) > 1:
        step = ticks[1][0] - ticks[0][0]
        assert f"{step:.0e}"[0] in "125"


def test_an_axis_of_logarithms_has_powers_of_ten() -> None:
    assert [text for _, text in Axis(1e-5, 1, 0, 100, log=True).ticks(6)][-2:] == ["0.1", "1"]
    assert Axis(0.01, 1, 0, 100, log=True).at(0.1) == 50


def test_a_value_outside_of_an_axis_is_put_at_its_end() -> None:
    assert Axis(0, 1, 10, 20).at(53) == 20
    assert Axis(0, 1, 10, 20).at(math.nan) == 10


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=500))
def test_thinning_keeps_the_ends_and_the_extremes(values: list[float]) -> None:
    kept = keep_records(values, 20)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert len(kept) <= 24
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= {values[i] for i in kept}


def test_medians_leave_out_a_spike_and_keep_a_slope() -> None:
    values = [float(i) for i in range(100)]
    values[50] = 1e6
    epochs, smooth = smooth_series(list(range(100)), values, 7, 400)
    assert max(smooth) == 99
    assert smooth[20:40] == values[20:40]
    assert len(epochs) == 100
    assert len(smooth_series(list(range(10_000)), [0.0] * 10_000, 7, 400)[0]) <= 400
