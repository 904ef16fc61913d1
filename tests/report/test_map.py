"""The map of a run's images: their places, neighbours and thumbnails, kept in its folder."""

from __future__ import annotations

import base64
import json
import shutil
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.command.front import main
from sslengine.data.sources import disk
from sslengine.engines.train import train
from sslengine.evaluate.store import Store
from sslengine.report import map_of_images
from sslengine.report.content import Thumbs
from sslengine.report.make_parts import make_parts
from sslengine.report.parts import Album, Parts, choose_images, read_parts
from tests.engines.runs import make_run
from tests.report.image_runs import (
    EACH,
    judge,
    on_disk,
    parts_of,
    trained,
    write_classes,
)

TEST = 6  # test images of a class


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged run, with the map; of the test images one is a copy of another."""
    root = tmp_path_factory.mktemp("mapped")
    images, test = write_classes(root / "images", EACH), write_classes(root / "test", TEST, first=1)
    shutil.copy(test / "red" / "0.png", test / "red" / "copy.png")
    run = trained(root / "run", **on_disk(images))
    judge(run, images, test)
    parts_of(run)
    return run


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run", symlinks=True))


def _features(run: Path, kind: str) -> torch.Tensor:
    """Of the test images, as `judge` has stored them."""
    scores = json.loads((run / "evaluation.json").read_text())["scores"]
    weights = {each["features"]: each["about"].get("weights_sha256") for each in scores}
    stores = [Store.read(file.parent) for file in run.glob("features/test-*/manifest.json")]
    (store,) = (each for each in stores if each.depends_on.get("weights_sha256") == weights[kind])
    rows = store.layer(store.layers[0])[:].flatten(1)
    return torch.nn.functional.normalize(rows)


def _tile(thumbs: Thumbs, place: int) -> np.ndarray[Any, Any]:
    encoded = BytesIO(base64.b64decode(thumbs.sprite.partition(",")[2]))
    place %= len(thumbs.names)
    row, column = (thumbs.side * each for each in divmod(place, thumbs.columns))
    whole = np.asarray(Image.open(encoded).convert("RGB"), dtype=float)
    return whole[row : row + thumbs.side, column : column + thumbs.side]


def test_it_shows_the_test_images_with_neighbours_by_the_features_of_judge(folder: Path) -> None:
    parts = read_parts(folder)
    thumbs, drawn = parts.thumbs, parts.map
    assert thumbs is not None
    assert drawn is not None
    names = [f"blue/{each}.png" for each in range(TEST)]
    names += [*(f"red/{each}.png" for each in range(TEST)), "red/copy.png"]
    assert sorted(thumbs.names) == sorted(names)
    assert thumbs.classes == ["blue", "red"]
    labels = np.array(thumbs.labels)
    assert [thumbs.classes[each] for each in labels] == [
        name.split("/")[0] for name in thumbs.names
    ]
    for kind in ("untrained", "trained"):
        similar = _features(folder, kind)
        similar = similar @ similar.T
        similar.fill_diagonal_(-2)
        nearest = similar.argsort(dim=1, descending=True, stable=True)[:, :10]
        assert [set(each) for each in drawn.nearest[kind]] == [
            set(each.tolist()) for each in nearest
        ]
        same = 100 * (labels[np.array(drawn.nearest[kind])] == labels[:, None]).mean(axis=1)
        assert drawn.same_class[kind] == pytest.approx(same.mean())
        by_class = [same[labels == each].mean() for each in (0, 1)]
        assert drawn.by_class[kind] == pytest.approx(by_class)
        places = np.array(drawn.places[kind])
        np.testing.assert_allclose([places.min(axis=0), places.max(axis=0)], [[0, 0], [1, 1]])
    identified = json.loads((folder / "evaluation.json").read_text())["images"]["TEST"]
    assert parts.fingerprint == identified["fingerprint"]
    assert len(set(drawn.queries)) == 12
    assert {*labels[drawn.queries]} == {0, 1}


def test_an_image_is_none_of_its_neighbours_and_a_copy_is_the_first(folder: Path) -> None:
    parts = read_parts(folder)
    assert parts.thumbs is not None
    assert parts.map is not None
    nearest = parts.map.nearest["trained"]
    assert not any(place in each for place, each in enumerate(nearest))
    one, two = (parts.thumbs.names.index(f"red/{each}.png") for each in ("0", "copy"))
    assert (nearest[one][0], nearest[two][0]) == (two, one)


def test_features_are_not_computed_again(folder: Path) -> None:
    """There are those of three kinds of two splits, as `judge` has made them."""
    assert len([*folder.glob("features/*/manifest.json")]) == 6


def test_a_kept_map_is_read_and_no_image_is(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_parts(copied)
    opened: list[str] = []
    monkeypatch.setattr(disk, "read_file", opened.append)
    assert parts_of(copied) == before
    assert opened == []


def test_the_same_run_gives_the_same_map_and_thumbnails(copied: Path) -> None:
    before = read_parts(copied)
    shutil.rmtree(copied / "report")
    again = parts_of(copied)
    assert (again.map, again.thumbs, again.views) == (before.map, before.thumbs, before.views)


def test_after_more_training_it_is_made_again(copied: Path) -> None:
    before = read_parts(copied)
    assert before.map is not None
    images = copied.parent / "images"
    write_classes(images, EACH)
    train(make_run(copied, OPTIMIZER__num_epochs=2, **on_disk(images)))
    assert read_parts(copied).map is None
    again = parts_of(copied).map
    assert again is not None
    assert again.places != before.map.places


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images without classes, and a run on them whose map is made, which judges it first."""
    root = tmp_path_factory.mktemp("flat")
    images = write_classes(root / "images", EACH)
    for path in images.glob("*/*.png"):
        path.rename(images / f"{path.parent.name}{path.name}")
    for kind in ("blue", "red"):
        (images / kind).rmdir()
    run = trained(root / "run", **on_disk(images))
    assert main(["report", str(run), "--map"]) == 0
    return images, run


def test_without_classes(flat: tuple[Path, Path]) -> None:
    parts = read_parts(flat[1])
    assert parts.thumbs is not None
    assert parts.map is not None
    assert {*parts.thumbs.labels} == {-1}
    assert parts.map.same_class == {}
    held_out = round(0.2 * 2 * EACH)
    assert len(parts.map.clusters) == len(parts.thumbs.names) == 2 * EACH - held_out
    assert {*parts.map.clusters} == {*range(10)}


def test_where_images_have_moved_the_thumbnails_are_still_shown(
    flat: tuple[Path, Path], tmp_path: Path
) -> None:
    images, run = flat
    before, notes = read_parts(run), list[str]()
    assert before.thumbs is not None
    images.rename(tmp_path / "elsewhere")
    try:
        assert make_parts(run, trust_config=False, notes=notes) == before
    finally:
        (tmp_path / "elsewhere").rename(images)
    assert [note.partition(":")[0] for note in notes] == ["views", "images"]
    colour = [_tile(before.thumbs, place).mean(axis=(0, 1)) for place in (0, -1)]
    assert colour[0][2] > 150 > 100 > colour[0][0]  # the first is blue, and the last red
    assert colour[1][0] > 150 > 100 > colour[1][2]


def test_of_many_images_a_part_is_shown(monkeypatch: pytest.MonkeyPatch, copied: Path) -> None:
    monkeypatch.setattr(map_of_images, "MOST", 10)
    shutil.rmtree(copied / "report")
    some = parts_of(copied)
    assert some.thumbs is not None
    assert sorted(some.thumbs.labels[:10]) == [0] * 5 + [1] * 5
    assert len([*copied.glob("features/*/manifest.json")]) == 6


def test_mistakes_are_those_on_which_the_neighbours_agree(folder: Path) -> None:
    parts = read_parts(folder)
    assert parts.thumbs is not None
    assert parts.map is not None
    wanted = np.array(parts.thumbs.labels)
    numbers, answers = np.array(parts.numbers), 1 - wanted
    found = parts.mistakes(numbers, wanted, answers)
    assert len(found) == 12
    agree = [
        100 * sum(s for near, s in zip(nearest, row) if wanted[near] != wanted[place]) / sum(row)
        for place, (nearest, row) in enumerate(zip(parts.map.nearest["trained"], parts.similar))
    ]
    assert agree[found[0].thumb] == pytest.approx(max(agree))
    assert found[0].votes == pytest.approx(max(agree))
    assert found[0].name == parts.thumbs.names[found[0].thumb]
    assert {found[0].wanted, found[0].answer} == {"blue", "red"}
    assert parts.mistakes(numbers, wanted, wanted) == []


def test_images_of_16_bits_are_seen_in_their_range(tmp_path: Path) -> None:
    """Thumbnails and views: dark on the left, bright on the right, in a small part of 65,535."""
    images = tmp_path / "images"
    images.mkdir()
    ramp = np.broadcast_to(np.linspace(3000, 4000, 20).astype(np.uint16), (20, 20))
    for number in range(8):
        Image.fromarray(ramp + np.uint16(number)).save(images / f"{number}.png")
    transforms = [{"name": "ImgReplicatePil", "num_times": 2}, {"name": "ToTensor"},
                  {"name": "Normalize", "mean": [3500.0], "std": [300.0]}]  # fmt: skip
    run = trained(
        tmp_path / "run", **on_disk(images), DATA__TRAIN__IMAGE_MODE="stored",
        DATA__TRAIN__TRANSFORMS=transforms, MODEL__INPUT_CHANNELS=1,
    )  # fmt: skip
    assert main(["report", str(run), "--map"]) == 0
    parts = read_parts(run)
    assert parts.thumbs is not None
    tile = _tile(parts.thumbs, 0)
    encoded = BytesIO(base64.b64decode(parts.views[0].views[0].partition(",")[2]))
    view = np.asarray(Image.open(encoded).convert("L"), dtype=float)
    for seen in (tile[..., 0], view):
        assert seen[:, 0].mean() < 40
        assert seen[:, -1].mean() > 215


@pytest.mark.parametrize(
    "change",
    [
        {"sprite": '"><script>alert(1)</script>'},
        {"columns": "many", "sprite": "data:image/webp;base64,"},
        {"side": 3, "more": 1},
        {"sprite": None},
    ],
)
def test_files_that_it_has_not_written_are_not_shown(copied: Path, change: dict[str, Any]) -> None:
    file = copied / "report" / "parts.json"
    held = json.loads(file.read_text())
    made = held["images"]["made"]
    made["thumbs"] |= change
    file.write_text(json.dumps(held))
    assert read_parts(copied) == Parts()


def test_so_many_rows_are_chosen_of_each_class() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] * 50 + [-1] * 10)
    chosen = choose_images(labels, 23)
    assert np.bincount(labels[chosen]).tolist() == [10, 3, 10]
    assert chosen.tolist() == sorted({*chosen.tolist()})
    assert choose_images(np.full(50, -1), 5).tolist() == [0, 10, 20, 30, 40]


def test_a_sprite_stays_small_and_keeps_its_order() -> None:
    """Noise is what takes most; 2,000 images may take 3 MB."""
    draw, album = np.random.default_rng(0), Album()

    def image(row: int) -> Image.Image:
        noise = draw.integers(0, 100, (40, 40, 3)).astype(np.uint8) + np.uint8(row)
        return Image.fromarray(noise)

    source: Any = SimpleNamespace(image=image, relative_path=str)
    dataset = SimpleNamespace(sources=[source], rows=range(100))
    assert [album.add("a", dataset, 99 - number) for number in range(100)] == [*range(100)]
    assert album.add("a", dataset, 0) == 99
    thumbs = album.join()
    assert thumbs is not None
    assert len(thumbs.sprite) <= 150_000
    assert thumbs.names[0] == "99"
    for place in (0, 99):
        assert _tile(thumbs, place).mean() == pytest.approx(49.5 + 99 - place, abs=8)
