"""Retrieval of copies and landmarks by the engines."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

from sslengine.contrib.copies import read_copies
from sslengine.contrib.retrieval.on_disk import read_images, read_plain_pickle
from sslengine.contrib.vissl_benchmarks.retrieval import instance_retrieval_test
from sslengine.errors import ConfigError, DataError
from tests.data.pictures import picture
from tests.engines.runs import make_run
from tests.engines.test_on_images import judged, trained, weights_of
from tests.engines.test_sweep import VIT

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


# ---- Copy detection through the engine `evaluate`: timm's own network and DINO's formulas say
# what is wanted.


assert trained  # a fixture

SIDE = 24
ARGUMENTS = {
    **VIT["MODEL__TRUNK"]["TIMM"]["arguments"], "embed_dim": 32, "dynamic_img_size": True
}  # fmt: skip
TRUNK = {"NAME": "timm", "TIMM": {"model": "vit_tiny_patch16_224", "arguments": ARGUMENTS}}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    return weights_of(folder, MODEL__TRUNK=TRUNK, OPTIMIZER__num_epochs=1)


@pytest.fixture(scope="module")
def copydays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 originals, of which 3 have two strongly changed copies, and each a darker one."""
    root, draw = tmp_path_factory.mktemp("copydays"), np.random.default_rng(0)

    def save(path: Path, pixels: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)

    for number in range(9):
        pixels = draw.uniform(0, 255, (5, 5, 3)).repeat(8, 0).repeat(8, 1)
        save(root / f"original/{200000 + 100 * number}.png", pixels)
        save(root / f"dark/40/{200000 + 100 * number}.png", 0.4 * pixels)
        for copy in (1, 2) if number < 3 else ():
            changed = 0.7 * pixels[::-1] + draw.normal(40, 40, pixels.shape)
            save(root / f"strong/{200000 + 100 * number + copy}.png", changed)
    for kind, count in (("distractors", 30), ("others", 80)):
        for number in range(count):
            pixels = draw.uniform(0, 255, (5, 5, 3)).repeat(8, 0).repeat(8, 1)
            save(root.with_name(f"{root.name}_{kind}") / f"{number}.png", pixels)
    return root


def _descriptors(weights: str, paths: list[Path]) -> Tensor:
    """Of timm's network: the class token, and (mean of max(x, 1e-6)^4)^(1/4) over the patches."""
    held = torch.load(weights, weights_only=False)["classy_state_dict"]["base_model"]["model"]
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0, **ARGUMENTS)
    own = network.state_dict()
    found = {name: value for key, value in held["trunk"].items() for name in own
             if key == name or key.endswith(f".{name}")}  # fmt: skip
    network.load_state_dict(found)
    images = [np.asarray(Image.open(path).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
              for path in paths]  # fmt: skip
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        tokens = network.eval().forward_features(pixels)
    assert tokens.shape[1] == 1 + (SIDE // 4) ** 2
    patches = tokens[:, 1:].double().clamp(min=1e-6)
    return torch.cat([tokens[:, 0].double(), (patches**4).mean(dim=1) ** 0.25], dim=1)


def _precisions(queries: Tensor, database: Tensor, wanted: list[int]) -> list[float]:
    """DINO's: trapezoids under the curve of the first 20; one image is wanted."""
    unit, others = (torch.nn.functional.normalize(each) for each in (queries, database))
    ranks = [row.tolist().index(own) for row, own
             in zip((unit @ others.T).argsort(dim=1, descending=True), wanted)]  # fmt: skip
    return [(float(rank == 0) + 1 / (rank + 1)) / 2 * (rank < 20) for rank in ranks]


def _asked(root: Path, **more: Any) -> dict[str, Any]:
    distractors = {"DISTRACTORS": f"{root}_distractors"}
    return {"PROTOCOLS": ["copies"],
            "COPIES": {"PATH": str(root), "SIDE": SIDE, **distractors, **more}}  # fmt: skip


@pytest.mark.parametrize("whitened", [pytest.param(False, marks=pytest.mark.slow), True])
def test_copies_find_their_originals_as_by_the_formulas(
    tmp_path: Path, weights: str, copydays: Path, whitened: bool
) -> None:
    others = {"WHITENING": f"{copydays}_others"} if whitened else {}
    found, text = judged(tmp_path, weights, MODEL__TRUNK=TRUNK, EVALUATE=_asked(copydays, **others))
    assert set(found) == {"trained", "untrained", "raw pixels"}
    row = found["trained"]["copies"]

    def rows(folder: Path | str) -> Tensor:
        paths = sorted(Path(folder).glob("*.png"))
        return _descriptors(weights, paths)

    sets = {
        "strong": rows(copydays / "strong"), "dark/40": rows(copydays / "dark/40"),
        "database": torch.cat([rows(copydays / "original"), rows(f"{copydays}_distractors")]),
    }  # fmt: skip
    if whitened:
        others_rows = rows(f"{copydays}_others")
        values, vectors = np.linalg.eigh(np.cov(others_rows.T.numpy(), bias=True))
        kept = values > values.max() * len(values) * np.finfo(float).eps
        moved = torch.from_numpy(vectors[:, kept] / np.sqrt(values[kept]))
        sets = {name: (of - others_rows.mean(dim=0)) @ moved for name, of in sets.items()}
    numbers = {"strong": [0, 0, 1, 1, 2, 2], "dark/40": [*range(9)]}
    precisions = {
        kind: _precisions(sets[kind], sets["database"], of) for kind, of in numbers.items()
    }
    assert len({*precisions["strong"]}) > 1
    for kind, each in precisions.items():
        assert row["metrics"][f"{kind} mAP"] == pytest.approx(100 * np.mean(each), abs=0.01)
    both = [*precisions["strong"], *precisions["dark/40"]]
    assert row["metrics"]["mAP"] == pytest.approx(100 * np.mean(both), abs=0.01)
    details = row["details"]
    assert (details["queries"], details["images"], details["distractors"]) == (15, 39, 30)
    assert details["layer"] == "class token + GeM"
    assert details["view"][0]["size"] == [SIDE, SIDE]
    assert found["raw pixels"]["copies"]["details"]["layer"] == "16x16"
    assert "strong mAP" in text


@pytest.mark.slow
def test_a_convolutional_trunk(tmp_path: Path, trained: str, copydays: Path) -> None:
    """The final feature in place of a class token."""
    found, _ = judged(tmp_path, trained, EVALUATE=_asked(copydays, DISTRACTORS=""))
    assert 0 < found["trained"]["copies"]["metrics"]["mAP"] <= 100


@pytest.mark.slow
def test_an_image_that_cannot_be_read(tmp_path: Path, trained: str, copydays: Path) -> None:
    asked = _asked(copydays)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.png").write_bytes(b"damaged")
    asked["COPIES"]["DISTRACTORS"] = str(tmp_path / "others")
    found, _ = judged(tmp_path / "run", trained, EVALUATE=asked)
    (note,) = found["trained"]["copies"]["notes"]
    assert "1 of 10 images of database cannot be read" in note


def test_folders_of_copies(tmp_path: Path) -> None:
    """By names, or numbers without two digits; other names have no original."""
    for name in ("original/200100", "original/cat", "crops/10/200133", "crops/10/dog", "blur/cat"):
        path = tmp_path / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "notes").mkdir()
    found = read_copies(tmp_path)
    assert [path.stem for path in found.originals] == ["200100", "cat"]
    named = {kind: ([path.stem for path in paths], numbers)
             for kind, (paths, numbers) in found.kinds.items()}  # fmt: skip
    assert named == {"blur": (["cat"], [1]), "crops/10": (["200133", "dog"], [0, -1])}
    with pytest.raises(DataError, match="there is no folder"):
        read_copies(tmp_path / "blur")
    (tmp_path / "blur/cat.jpg").rename(tmp_path / "blur/cow.jpg")
    (tmp_path / "crops/10/200133.jpg").unlink()
    with pytest.raises(DataError, match="no folder has copies of images in original/"):
        read_copies(tmp_path)
