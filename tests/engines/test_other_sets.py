"""The linear probe on labelled images of other sets, through the engine `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler

from tests.engines.test_on_images import judged, trained

assert trained  # a fixture

NAMES = ("ant", "bee", "cow")
TOTENSOR = [{"name": "ToTensor"}]


def _folder(root: Path, of: dict[str, list[int]], seed: int) -> NDArray[np.float64]:
    """Images in the folders of these names, of colours by class; their pixels, in order."""
    draw, found = np.random.default_rng(seed), []
    for name in sorted(of):
        (root / name).mkdir(parents=True)
        for place, number in enumerate(of[name]):
            pixels = draw.normal(110, 45, (16, 16, 3)) + 7 * np.eye(3)[number]
            image = pixels.clip(0, 255).astype(np.uint8)
            Image.fromarray(image).save(root / name / f"{name}_{place}.png")
            found.append(image.transpose(2, 0, 1).ravel() / 255)
    return np.array(found)


def _split(root: Path) -> dict[str, Any]:
    return {"DATA_SOURCES": ["disk_folder"], "LABEL_SOURCES": ["disk_folder"],
            "DATA_PATHS": [str(root)], "DATA_LIMIT": -1, "TRANSFORMS": TOTENSOR}  # fmt: skip


def _scores(train: NDArray[np.float64], tested: NDArray[np.float64]) -> NDArray[np.float64]:
    """scikit-learn's, of three classes of 12 images."""
    scaler = StandardScaler().fit(train)
    probe = LogisticRegression(C=1 / (0.1 * len(train)), tol=1e-8, max_iter=5000)
    probe.fit(scaler.transform(train), np.repeat([0, 1, 2], 12))
    scores: NDArray[np.float64] = probe.decision_function(scaler.transform(tested))
    return scores


@pytest.mark.slow
def test_sets_of_a_part_of_the_classes_other_names_and_several_labels(
    tmp_path: Path, trained: str
) -> None:
    pixels = _folder(tmp_path / "train", {n: [i] * 12 for i, n in enumerate(NAMES)}, 0)
    _folder(tmp_path / "val", {name: [i] for i, name in enumerate(NAMES)}, 1)
    part = _folder(tmp_path / "part", {"bee": [1] * 14, "cow": [2] * 7}, 2)
    _folder(tmp_path / "numbers", {"1": [1] * 14, "2": [2] * 7}, 2)
    _folder(tmp_path / "renamed", {"insect": [0] * 6 + [1] * 6, "yak": [2]}, 3)
    several = _folder(tmp_path / "several", {"x": [0, 1, 2] * 4}, 4)
    (tmp_path / "classes.json").write_text(json.dumps({"insect": ["ant", 1]}))
    labels = [[each % 3, "cow"] if each else [] for each in range(12)]
    by_file = {f"x_{place}.png": each for place, each in enumerate(labels)}
    (tmp_path / "labels.json").write_text(json.dumps(by_file))
    sets: dict[str, Any] = {
        "part": {"PATH": "part"}, "shown": {"PATH": "part", "ANSWERS": "shown"},
        "numbers": {"PATH": "numbers"}, "renamed": {"PATH": "renamed", "CLASSES": "classes.json"},
        "several": {"PATH": "several", "LABELS": "labels.json"}, "none": {"PATH": "several"},
    }  # fmt: skip
    for each in sets.values():
        each.update({key: str(tmp_path / each[key]) for key in each if key != "ANSWERS"})
    changes = {f"DATA__TRAIN__{key}": value for key, value in _split(tmp_path / "train").items()}
    found, text = judged(
        tmp_path / "run", trained, **changes, DATA__TEST=_split(tmp_path / "val"),
        EVALUATE={"PROTOCOLS": ["other_sets"], "OTHER_SETS": sets},
    )  # fmt: skip
    assert set(found) == {"trained", "untrained", "raw pixels"}
    row = found["raw pixels"]["other_sets"]
    metrics, wanted = row["metrics"], np.repeat([1, 2], [14, 7])
    scores = _scores(pixels, part)
    answers = {"part": scores.argmax(axis=1), "shown": 1 + scores[:, 1:].argmax(axis=1)}
    assert any(answers["part"] != answers["shown"])
    for name, some in answers.items():
        assert metrics[f"{name} accuracy"] == pytest.approx(100 * np.mean(some == wanted))
        f1 = f1_score(wanted, some, average="macro")
        assert metrics[f"{name} macro F1"] == pytest.approx(100 * f1)
    assert metrics["numbers accuracy"] == metrics["part accuracy"]
    best = _scores(pixels, several).argmax(axis=1)
    right = [best[place] in (place % 3, 2) for place in range(1, 12)]
    assert metrics["several accuracy"] == pytest.approx(100 * np.mean(right))
    assert "several macro F1" not in metrics
    assert "renamed balanced accuracy" not in metrics
    images = {"part": 21, "shown": 21, "numbers": 21, "renamed": 12, "several": 11}
    assert row["details"]["images"] == images
    notes = [
        "renamed: 1 of 13 images show no class of TRAIN: they are left out",
        "several: 1 of 12 images show no class of TRAIN: they are left out",
        "none: no image shows a class of TRAIN.",
    ]
    assert row["notes"] == notes
    assert "other_sets" in text


@pytest.mark.slow
def test_without_other_sets_or_labels(tmp_path: Path, trained: str) -> None:
    found, _ = judged(tmp_path, trained, EVALUATE={"PROTOCOLS": ["other_sets"]})
    assert found["trained"]["other_sets"]["notes"] == [
        "config.EVALUATE.OTHER_SETS names no set of images."
    ]
    given = {"PROTOCOLS": ["other_sets"], "OTHER_SETS": {"own": {"SOURCE": "shapes", "LIMIT": 9}}}
    found, _ = judged(tmp_path, trained, DATA__TRAIN__DATA_LIMIT=1, EVALUATE=given)
    assert not found["trained"]["other_sets"]["metrics"]
    assert "all the same" in found["trained"]["other_sets"]["notes"][0]
