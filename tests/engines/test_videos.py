"""Masks: segmentation by a trained head, and objects that are followed through videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.contrib.propagation import Propagation, answers
from sslengine.distributed.ranks import is_primary
from sslengine.engines.evaluate import evaluate
from tests.engines.runs import make_run
from tests.engines.test_evaluate import FROZEN
from tests.engines.test_on_images import judged, trained, weights_of
from tests.ranks import RankPool

assert trained  # a fixture

TRUNK = {
    "NAME": "vision_transformer",
    "VISION_TRANSFORMERS": {
        "IMAGE_SIZE": 16, "PATCH_SIZE": 4, "NUM_LAYERS": 1, "NUM_HEADS": 2, "HIDDEN_DIM": 32,
        "MLP_DIM": 16,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    return weights_of(folder, MODEL__TRUNK=TRUNK, OPTIMIZER__num_epochs=1)


@pytest.fixture(scope="module")
def davis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three coloured squares move over a texture: wide, high, and of odd sides. Masks have a
    palette; in the first video the numbers are 1, 2, 5, and a pixel in the corner is left out."""
    root, draw = tmp_path_factory.mktemp("davis"), np.random.default_rng(0)
    colours = np.array([[250, 40, 30], [30, 240, 50], [40, 60, 250]])
    for name, (high, wide), numbers in (
        ("wide", (64, 97), (1, 2, 5)), ("high", (90, 65), (1, 2, 3)), ("odd", (67, 67), (1, 2, 3)),
    ):  # fmt: skip
        ground = 120 + draw.normal(0, 12, (high, wide, 3))
        for frame in range(6):
            pixels, mask = ground.copy(), np.zeros((high, wide), np.uint8)
            for place, number in enumerate(numbers):
                top, left = 4 + 20 * place, 5 + 15 * place + 3 * frame
                part = slice(top, top + 16), slice(left, left + 16)
                pixels[part], mask[part] = colours[place], number
            mask[-1, -1] = 255 if name == "wide" else 0
            image = root / f"JPEGImages/480p/{name}/{frame:05}.jpg"
            of = root / f"Annotations/480p/{name}/{frame:05}.png"
            for path in (image, of):
                path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(image, quality=95)
            picture = Image.fromarray(mask)
            picture.putpalette([*range(256)] * 3)
            assert picture.mode == "P"
            if frame < 5:  # that of the last frame is not needed
                picture.save(of)
    (root / "ImageSets/2017").mkdir(parents=True)
    (root / "ImageSets/2017/val.txt").write_text("wide\nhigh\nodd\n")
    return root


def _asked(root: Path, **more: Any) -> dict[str, Any]:
    videos = {"PATH": str(root), "SIDE": 32, "MULTIPLE": 8, **more}
    return {"PROTOCOLS": ["videos"], "VIDEOS": videos}


def _colours_carried(
    root: Path, name: str, size: tuple[int, int], wanted: list[int]
) -> list[float]:
    """J of each object by the raw pixels' means of 4 x 4, as read, resized and measured here."""
    frames, masks = [], []
    for frame in range(6):
        image = Image.open(root / f"JPEGImages/480p/{name}/{frame:05}.jpg")
        pixels = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR)) / 255
        blocks = pixels.reshape(size[0] // 4, 4, size[1] // 4, 4, 3).mean(axis=(1, 3))
        frames.append(torch.from_numpy(blocks).permute(2, 0, 1).float())
        if frame < 5:
            masks.append(Image.open(root / f"Annotations/480p/{name}/{frame:05}.png"))
    small = np.array(masks[0].resize((size[1] // 4, size[0] // 4), Image.Resampling.NEAREST))
    first = torch.stack([torch.from_numpy(small == each) for each in (0, *wanted)]).float()
    carried, found = Propagation(frames[0], first), []
    for frame in range(1, 5):
        shown = answers(carried.next(frames[frame]), size).numpy().astype(np.uint8)
        mask = np.array(masks[frame])
        shown = np.array(Image.fromarray(shown).resize(mask.shape[::-1], Image.Resampling.NEAREST))
        found.append([((shown == place) & (mask == each)).sum() / ((shown == place) | (mask == each)).sum()
                      for place, each in enumerate(wanted, 1)])  # fmt: skip
    return [float(each) for each in 100 * np.mean(found, axis=0)]


def test_squares_are_followed(tmp_path: Path, weights: str, davis: Path) -> None:
    found, text = judged(tmp_path, weights, MODEL__TRUNK=TRUNK, EVALUATE=_asked(davis))
    assert set(found) == {"trained", "untrained", "raw pixels"}
    row = found["raw pixels"]["videos"]
    assert row["notes"] == []
    wanted = {
        "wide": _colours_carried(davis, "wide", (32, 48), [1, 2, 5]),
        "high": _colours_carried(davis, "high", (40, 32), [1, 2, 3]),
        "odd": _colours_carried(davis, "odd", (32, 32), [1, 2, 3]),
    }
    for name, each in wanted.items():
        assert row["details"]["videos"][name][0] == pytest.approx(np.mean(each), abs=0.5), name
    metrics = row["metrics"]
    assert metrics["J mean"] == pytest.approx(np.mean([*wanted.values()]), abs=0.5)
    assert metrics["J mean"] > 60
    assert metrics["J&F"] == pytest.approx((metrics["J mean"] + metrics["F mean"]) / 2)
    assert row["details"]["objects"] == 9
    own = found["trained"]["videos"]
    assert own["details"]["layer"] == "lastMAP"
    assert own["details"]["view"][0]["size"] == 32
    assert 10 < own["metrics"]["J mean"] < 100
    assert "J&F" in text


@pytest.mark.slow
def test_what_a_video_lacks_does_not_stop_the_others(
    tmp_path: Path, trained: str, davis: Path
) -> None:
    """Of a convolutional trunk too."""
    root = tmp_path / "davis"
    for part in ("JPEGImages", "Annotations"):
        (root / part / "480p").mkdir(parents=True)
        for each in ("wide", "odd"):
            (root / part / "480p" / each).symlink_to(davis / part / "480p" / each)
    bare = root / "Annotations/480p/bare"
    bare.mkdir()
    (root / "JPEGImages/480p/bare").symlink_to(davis / "JPEGImages/480p/high")
    for frame in range(5):
        Image.fromarray(np.zeros((90, 65), np.uint8)).save(bare / f"{frame:05}.png")
    (root / "Annotations/480p/gone").mkdir()
    (root / "JPEGImages/480p/gone").symlink_to(davis / "JPEGImages/480p/high")
    (root / "ImageSets/2017").mkdir(parents=True)
    (root / "ImageSets/2017/val.txt").write_text("gone\nwide\nbare\n")
    found, _ = judged(tmp_path / "run", trained, EVALUATE=_asked(root, SIDE=64))
    row = found["trained"]["videos"]
    assert row["metrics"]["J mean"] > 0
    assert [*row["details"]["videos"]] == ["wide"]
    assert len(row["notes"]) == 2
    assert row["notes"][0].startswith("gone: there is no mask")
    assert row["notes"][1].startswith("bare:")
    assert row["notes"][1].endswith("shows no object.")


def _report(folder: Path, weights: str, root: Path, ranks: int) -> Any:
    given = {**FROZEN, "LINEAR_PROBE": {"PENALTIES": [0.1]}, "MODEL__TRUNK": TRUNK}
    asked = {"LABEL_FREE": [], **_asked(root)}
    evaluate(make_run(folder, "evaluate", **given, EVALUATE=asked,
                      MODEL__WEIGHTS_INIT__PARAMS_FILE=weights,
                      DISTRIBUTED__NUM_PROC_PER_NODE=ranks))  # fmt: skip
    if not is_primary():
        return None
    report = json.loads((folder / "evaluation.json").read_text())
    return [each["protocols"]["videos"] for each in report["scores"]]


@pytest.mark.slow
def test_ranks_share_the_videos(
    tmp_path: Path, weights: str, davis: Path, two_ranks: RankPool
) -> None:
    one = _report(tmp_path / "alone", weights, davis, 1)
    found, *_ = two_ranks.run(_report, tmp_path / "shared", weights, davis, 2)
    assert found == one


# ---- A trained head on maps through the engine `evaluate`.


assert weights  # a fixture


def _bands(root: Path) -> dict[str, object]:
    """Images 24 x 48 of three bands of colour, and masks of them; test masks are twice as large."""
    draw, sources = np.random.default_rng(0), {}
    colours = np.array([[230, 40, 40], [40, 220, 50], [50, 40, 240]])
    for split, count, scale in (("TRAIN", 12, 1), ("TEST", 5, 2)):
        files = [root / "images" / f"{split}{number}.png" for number in range(count)]
        for path in files:
            bands = draw.permutation(3).repeat(8)[:, None].repeat(48, 1)
            pixels = colours[bands] + draw.normal(0, 10, (24, 48, 3))
            mask = root / "masks" / path.name
            for each in (path, mask):
                each.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
            large = (bands + 4).repeat(scale, 0).repeat(scale, 1).astype(np.uint8)
            large[:, -1] = 255
            Image.fromarray(large).save(mask)
        listed = root / f"{split}.npy"
        np.save(listed, np.array([str(path) for path in files]))
        np.save(root / f"{split}_labels.npy", np.arange(count) % 2)
        sources[split] = {
            "DATA_SOURCES": ["disk_filelist"], "DATA_PATHS": [str(listed)],
            "LABEL_SOURCES": ["disk_filelist"],
            "LABEL_PATHS": [str(root / f"{split}_labels.npy")], "DATA_LIMIT": -1,
            "TRANSFORMS": [{"name": "Resize", "size": [24, 24]}, {"name": "ToTensor"}],
        }  # fmt: skip
    train = {f"DATA__TRAIN__{key}": value for key, value in sources["TRAIN"].items()}
    return {**train, "DATA__TEST": sources["TEST"]}


@pytest.mark.slow
def test_bands_are_learnt(tmp_path: Path, weights: str) -> None:
    changes, masks = _bands(tmp_path), str(tmp_path / "masks")
    dense = {"MASKS_TRAIN": masks, "MASKS_TEST": masks, "SIDE": 48}
    asked = {"PROTOCOLS": ["dense", "segmentation"], "DENSE": dense,
             "SEGMENTATION": {"ITERATIONS": 150, "LR": 0.02}}  # fmt: skip
    found, text = judged(tmp_path / "run", weights, MODEL__TRUNK=TRUNK, EVALUATE=asked, **changes)
    assert set(found) == {"trained", "untrained", "raw pixels"}
    for name, each in found.items():
        row = each["segmentation"]
        assert row["metrics"]["mIoU"] > 95, name
        assert row["details"]["classes"] == 3
        assert row["details"]["images"] == {"train": 12, "test": 5}
        assert row["chosen_on"] == "nothing: there is nothing to choose"
        assert row["details"]["map"] == each["dense"]["details"]["map"]
    details = found["trained"]["segmentation"]["details"]
    assert (details["layer"], details["map"]) == ("lastMAP", [12, 12])
    assert found["raw pixels"]["segmentation"]["details"]["layer"] == "16x16"
    assert "segmentation" in text
