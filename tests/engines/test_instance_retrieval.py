"""VISSL's instance retrieval on made copies of its datasets."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.contrib.retrieval.on_disk import read_images, read_plain_pickle
from sslengine.contrib.vissl_benchmarks.retrieval import instance_retrieval_test
from sslengine.errors import ConfigError, DataError
from tests.data.pictures import picture
from tests.engines.runs import make_run

MAPS = {
    "EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True, "SHOULD_FLATTEN_FEATS": False,
    "LINEAR_EVAL_FEAT_POOL_OPS_MAP": [["res2", ["Identity", []]]],
}  # fmt: skip


def _save(path: Path, number: int, width: int = 40, height: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number, 8).resize((width, height), Image.Resampling.BICUBIC).save(path, quality=95)


def _revisited(root: Path, name: str) -> None:
    """Six images; each query is one of them, which the database has as `easy`."""
    for number in range(6):
        _save(root / name / "jpg" / f"image{number}.jpg", number, 40 + 8 * (number % 2))
    gnd = [
        {"bbx": [0.0, 0.0, 20.0, 30.0], "easy": np.array([query]), "hard": [5 - query],
         "junk": np.array([4], dtype=np.int64)}
        for query in range(2)
    ]  # fmt: skip
    truth = {"gnd": gnd, "imlist": [f"image{n}" for n in range(6)], "qimlist": ["image0", "image1"]}
    (root / name / f"gnd_{name}.pkl").write_bytes(pickle.dumps(truth))


def _run(folder: Path, root: Path, **options: Any) -> dict[str, Any]:
    options = {"DATASET_PATH": str(root), "RESIZE_IMG": 32, "N_PCA": 4, **options}
    run = make_run(
        folder, "instance_retrieval_test", MODEL__FEATURE_EVAL_SETTINGS=MAPS,
        MODEL__HEAD__PARAMS=[], IMG_RETRIEVAL=options,
    )  # fmt: skip
    instance_retrieval_test(run)
    found: dict[str, Any] = json.loads((folder / "instance_retrieval_test.json").read_text())
    return found


def _precision(ranked: list[int], wanted: set[int], junk: set[int]) -> float:
    """The area by trapezoids, of a list without junk."""
    places = [n for n, each in enumerate(r for r in ranked if r not in junk) if each in wanted]
    parts = [((n / p if p else 1) + (n + 1) / (p + 1)) / 2 for n, p in enumerate(places)]
    return float(np.mean(parts))


@pytest.mark.parametrize("options", [
    {"FEATS_PROCESSING_TYPE": "rmac", "SPATIAL_LEVELS": 2},
    {"FEATS_PROCESSING_TYPE": "gem", "SIMILARITY_MEASURE": "l2", "IMG_SCALINGS": [1, 0.5]},
])  # fmt: skip
def test_revisited(tmp_path: Path, options: dict[str, Any]) -> None:
    for name in ("roxford5k", "rparis6k"):
        _revisited(tmp_path / "data", name)
    names = {"EVAL_DATASET_NAME": "roxford5k", "TRAIN_DATASET_NAME": "rparis6k"}
    found = _run(tmp_path / "run", tmp_path / "data", **names, **options)["roxford5k"]["metrics"]
    assert found["easy mAP"] == 100  # the database has the queries
    ranked = json.loads((tmp_path / "run" / "rankings.json").read_text())
    scores = np.array(json.loads((tmp_path / "run" / "similarity_scores.json").read_text()))
    assert (-scores.T).argsort(axis=1, kind="stable").tolist() == ranked
    levels = {"medium": (lambda q: {q, 5 - q}, lambda q: {4}),
              "hard": (lambda q: {5 - q}, lambda q: {4, q})}  # fmt: skip
    for level, (wanted, junk) in levels.items():
        # Image 4 is both wanted and junk for the second query: wanted.
        means = [_precision(ranked[q], wanted(q), junk(q) - wanted(q)) for q in (0, 1)]
        assert found[f"{level} mAP"] == pytest.approx(100 * np.mean(means))


def test_queries_are_cropped_at_the_size_of_the_whole_image(tmp_path: Path) -> None:
    _revisited(tmp_path / "data", "roxford5k")
    names = {"EVAL_DATASET_NAME": "roxford5k", "TRAIN_PCA_WHITENING": False}
    options = {"FEATS_PROCESSING_TYPE": "gem", "CROP_QUERY_ROI": True}
    _run(tmp_path / "run", tmp_path / "data", **names, **options)
    with Image.open(tmp_path / "run" / "queries" / "00000.png") as query:
        assert query.size == (16, 24)  # 20 x 30 of 40 x 30, which becomes 32 x 24


def test_copydays_and_oxford(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(3):
        _save(data / "copydays" / "database" / f"{200000 + 100 * number}.png", number)
        for kind in ("strong", "crops_10"):
            _save(data / "copydays" / "queries" / f"{kind}_{200001 + 100 * number}.png", number)
    _save(data / "copydays" / "train" / "any.png", 7)
    _save(data / "copydays" / "train" / "other.png", 8)
    names = {"EVAL_DATASET_NAME": "copydays", "TRAIN_DATASET_NAME": "copydays/train"}
    found = _run(tmp_path / "a", data, **names, FEATS_PROCESSING_TYPE="rmac")
    assert {name: each["metrics"]["mAP"] for name, each in found.items()} == {
        "strong": 100, "crops_10": 100,
    }  # fmt: skip
    for number, name in enumerate(("all_0", "all_1", "paris_louvre_000136", "other")):
        _save(data / "Oxford" / "jpg" / f"{name}.jpg", number)
    lab = data / "Oxford" / "lab"
    lab.mkdir()
    (lab / "all_query.txt").write_text("oxc1_all_0 1 2 30 20\n")
    for kind, listed in (("ok", "all_1"), ("good", "all_0"), ("junk", "paris_louvre_000136")):
        (lab / f"all_{kind}.txt").write_text(f"{listed}\n")
    images = read_images(data, "Oxford")
    assert [each.stem for each in images.database] == ["all_0", "all_1", "other"]
    (truth,) = images.truth
    assert (truth.easy, truth.junk) == ([0, 1], [])
    with pytest.raises(ConfigError, match="there is no folder .*oxfort.* Did you mean 'Oxford'"):
        read_images(data, "oxfort")


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made_by_a_pickle",)


def test_a_pickle_that_runs_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps({"gnd": _Runs()}))
    with pytest.raises(DataError, match="mkdir, which needs code to load"):
        read_plain_pickle(tmp_path / "gnd.pkl")
    assert not (tmp_path / "made_by_a_pickle").exists()
