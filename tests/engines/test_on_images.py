"""Protocols that compute features of further images: other sets, corruptions, masks, views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from sslengine.contrib import corruptions
from sslengine.data.sources.generated import draw_shape, mask_of_shape
from sslengine.engines.evaluate import evaluate
from sslengine.engines.train import train
from sslengine.evaluate.options import PROTOCOLS
from sslengine.evaluate.store import Store
from tests.engines.runs import make_run, screen
from tests.engines.test_evaluate import FROZEN, SHAPES


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    return weights_of(tmp_path_factory.mktemp("trained"))


def weights_of(folder: Path, **changes: Any) -> str:
    """Of a run on shapes."""
    train(make_run(folder, **SHAPES, **changes))
    return str(folder / "checkpoints" / "checkpoint.torch")


def judged(folder: Path, weights: str, **changes: Any) -> tuple[dict[str, Any], str]:
    """The protocols' results by kind of features, and the screen."""
    given = {**FROZEN, "LINEAR_PROBE": {"PENALTIES": [0.1]}, **changes}
    given["MODEL__WEIGHTS_INIT__PARAMS_FILE"] = weights
    given["EVALUATE"] = {"LABEL_FREE": [], **given["EVALUATE"]}
    run = make_run(folder, "evaluate", **given)
    evaluate(run)
    report = json.loads((folder / "evaluation.json").read_text())
    return {each["features"]: each["protocols"] for each in report["scores"]}, screen(run)


@pytest.mark.slow
def test_images_of_another_set(tmp_path: Path, trained: str) -> None:
    outside = {"SOURCE": "upright_shapes", "LIMIT": 30}
    found, text = judged(
        tmp_path, trained, EVALUATE={"PROTOCOLS": ["out_of_set"], "OUTSIDE": outside}
    )
    assert set(found) == {"trained", "untrained", "raw pixels"}
    inside = found["raw pixels"]["out_of_set"]
    about = {"outside": "upright_shapes", "layer": "16x16", "network": "raw pixels"}
    assert about.items() <= inside["details"].items()
    stores = map(Store.read, (path.parent for path in tmp_path.rglob("manifest.json")))
    pixels = {len(each.indices): each.layer("16x16").tensor().flatten(1).numpy()
              for each in stores if each.layers == ["16x16"]}  # fmt: skip
    search = NearestNeighbors(n_neighbors=50, metric="cosine").fit(pixels[60])
    own, other = (search.kneighbors(pixels[n])[0][:, -1] for n in (20, 30))
    wanted = roc_auc_score(np.r_[np.zeros(20), np.ones(30)], np.r_[own, other])
    assert inside["metrics"]["AUROC"] == pytest.approx(100 * wanted, abs=0.2)
    assert "out_of_set" in text


@pytest.mark.slow
def test_all_images_of_another_set(tmp_path: Path, trained: str) -> None:
    """Also where a share of the test images is judged."""
    share = {**FROZEN["DATA__TEST"], "DATA_LIMIT_SAMPLING": {"SHARE": 0.5}}
    outside = {"SOURCE": "upright_shapes", "LIMIT": 30}
    given = {"PROTOCOLS": ["out_of_set"], "OUTSIDE": outside}
    judged(tmp_path, trained, DATA__TEST=share, EVALUATE=given)
    stores = map(Store.read, (path.parent for path in tmp_path.rglob("manifest.json")))
    counts = {len(each.indices) for each in stores if each.layers == ["16x16"]}
    assert len(counts) == 3
    assert counts > {60, 30}
    assert 20 not in counts


@pytest.mark.slow
def test_two_views_of_each_image(tmp_path: Path, trained: str) -> None:
    found, _ = judged(tmp_path, trained, EVALUATE={"PROTOCOLS": ["view_retrieval"]})
    stores = map(Store.read, (path.parent for path in tmp_path.rglob("manifest.json")))
    first, second = sorted(
        (each for each in stores if each.layers == ["16x16"] and "RandomResizedCrop" in str(each)),
        key=lambda each: each.depends_on["seed"],
    )
    rows, others = (each.layer("16x16").tensor().flatten(1).numpy() for each in (first, second))
    assert not np.array_equal(rows, others)
    nearest = NearestNeighbors(n_neighbors=1, metric="cosine").fit(others).kneighbors(rows)[1]
    views = found["raw pixels"]["view_retrieval"]
    assert views["metrics"]["R@1"] == 100 * np.mean(nearest[:, 0] == np.arange(20))
    assert views["details"]["queries"] == 20
    assert views["details"]["view"][0]["size"] == 16


@pytest.mark.slow
def test_few_labels_of_few_images(tmp_path: Path, trained: str) -> None:
    names = ["few_labels", "calibration"]
    found, _ = judged(tmp_path, trained, EVALUATE={"PROTOCOLS": names})
    few = found["trained"]["few_labels"]
    assert few["details"]["images"] == {"1 %": 10, "10 %": 10}
    assert few["notes"][0].startswith("1 %: no class has two samples, so none is held out")
    assert any("1 %: 10 of 10 classes have so few images" in note for note in few["notes"])
    assert 0 <= found["trained"]["calibration"]["metrics"]["ECE"] <= 100


@pytest.mark.slow
def test_what_cannot_be_done_is_said_and_the_rest_goes_on(tmp_path: Path, trained: str) -> None:
    """One class; no other set."""
    found, text = judged(
        tmp_path, trained, DATA__TRAIN__DATA_LIMIT=1,
        EVALUATE={"PROTOCOLS": list(PROTOCOLS), "DENSE": {"IMAGES": 3},
                  "CORRUPTIONS": {"SEVERITIES": [5]}},
    )  # fmt: skip
    for name in PROTOCOLS:
        some = found["trained"][name]
        assert some["metrics"] or some["notes"], name
    assert "EVALUATE.OUTSIDE.SOURCE names no other set" in text
    assert found["trained"]["view_retrieval"]["metrics"]


@pytest.mark.slow
def test_maps_are_judged_by_the_masks_of_shapes_and_of_files(tmp_path: Path, trained: str) -> None:
    """The same images and masks as files: the same numbers."""
    given = {"PROTOCOLS": ["dense"], "DENSE": {"IMAGES": 5}}
    found, text = judged(tmp_path / "drawn", trained, EVALUATE=given)
    assert set(found) == {"trained", "untrained", "raw pixels"}
    details = found["trained"]["dense"]["details"]
    assert (details["layer"], details["map"]) == ("res5", [2, 2])
    assert details["images"] == {"train": 5, "test": 5}
    assert details["chosen_on"] == "1 of 5 training images"
    assert found["raw pixels"]["dense"]["details"]["layer"] == "16x16"
    assert {"kNN mIoU", "linear mIoU"} <= set(found["trained"]["dense"]["metrics"])
    assert "dense" in text
    changes: dict[str, Any] = {}
    folders = {}
    for split, count in (("TRAIN", 4), ("TEST", 2)):
        paths, labels = tmp_path / f"{split}.npy", tmp_path / f"{split}_labels.npy"
        files = [tmp_path / "images" / f"{split}{number}.png" for number in range(count)]
        for number, path in enumerate(files):
            mask = tmp_path / "masks" / path.name
            mask.parent.mkdir(exist_ok=True)
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(draw_shape(split, number, 16)).save(path)
            Image.fromarray(mask_of_shape(split, number, 16)).save(mask)
        np.save(paths, np.array([str(path) for path in files]))
        np.save(labels, np.arange(count) % 10)
        folders[f"MASKS_{split}"] = str(tmp_path / "masks")
        values = {"DATA_SOURCES": ["disk_filelist"], "LABEL_SOURCES": ["disk_filelist"],
                  "DATA_PATHS": [str(paths)], "LABEL_PATHS": [str(labels)], "DATA_LIMIT": -1}  # fmt: skip
        changes |= {f"DATA__{split}__{key}": value for key, value in values.items()}
    changes["DATA__TEST"] = {key.removeprefix("DATA__TEST__"): value for key, value in changes.items()
                             if key.startswith("DATA__TEST__")} | {"TRANSFORMS": [{"name": "ToTensor"}]}  # fmt: skip
    changes = {key: value for key, value in changes.items() if not key.startswith("DATA__TEST__")}
    given = {"PROTOCOLS": ["dense"], "DENSE": {"IMAGES": -1, **folders}}
    filed, _ = judged(tmp_path / "files", trained, **changes, EVALUATE=given)
    assert filed["raw pixels"]["dense"]["metrics"]["kNN accuracy"] > 0
    next((tmp_path / "masks").glob("TRAIN0.png")).unlink()
    _, text = judged(tmp_path / "files", trained, **changes, EVALUATE=given)
    assert "there is no mask" in text


def test_accuracy_on_corrupted_images(tmp_path: Path, trained: str) -> None:
    """mCE by hand; and corruption of a kind that changes nothing is not there."""
    kinds = {"KINDS": ["contrast", "gaussian_noise"], "SEVERITIES": [1, 5]}
    found, text = judged(
        tmp_path, trained, LINEAR_PROBE={"PENALTIES": [1.0, 0.1]},
        EVALUATE={"PROTOCOLS": ["corruptions"], "CORRUPTIONS": kinds},
    )  # fmt: skip
    some = {name: each["corruptions"] for name, each in found.items()}
    errors = {name: each["details"]["errors"] for name, each in some.items()}
    for name, each in some.items():
        by_kind = [100 * (1 - np.mean(errors[name][kind])) for kind in kinds["KINDS"]]
        assert [each["metrics"][kind] for kind in kinds["KINDS"]] == pytest.approx(by_kind)
        assert each["metrics"]["mean accuracy"] == pytest.approx(np.mean(by_kind))
        assert "training images" in each["details"]["chosen_on"]
    assert some["untrained"]["metrics"]["mCE"] == pytest.approx(100)
    ratios = [
        sum(errors["trained"][kind]) / sum(errors["untrained"][kind]) for kind in kinds["KINDS"]
    ]
    assert some["trained"]["metrics"]["mCE"] == pytest.approx(100 * np.mean(ratios))
    assert some["raw pixels"]["details"]["errors"] != some["trained"]["details"]["errors"]
    # Of two penalties each is an end: the probe says so, and what uses it.
    end = " is an end of those tried, 0.1 to 1"
    assert all(each["notes"][0].endswith(end) for each in some.values())
    notes = json.loads((tmp_path / "evaluation.json").read_text())["notes"]
    assert sum(f"linear probe: penalty {each}{end}" in " ".join(notes) for each in (0.1, 1)) > 0
    assert all(f"  note        {each}" in text for each in notes)
    assert "note        corruptions: " in text


@pytest.mark.slow
def test_after_a_kill_what_was_corrupted_is_not_computed_again(
    tmp_path: Path, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"KINDS": ["contrast", "gaussian_noise"], "SEVERITIES": [1, 5]}
    given = {"PROTOCOLS": ["corruptions"], "CORRUPTIONS": asked}
    whole, _ = judged(tmp_path / "whole", trained, EVALUATE=given)
    computed: list[Any] = []
    compute = corruptions._right

    def counted(judged: Any, view: Any, probes: Any) -> Any:
        computed.append(view)
        if len(computed) == 3:
            raise KeyboardInterrupt
        return compute(judged, view, probes)

    monkeypatch.setattr(corruptions, "_right", counted)
    with pytest.raises(KeyboardInterrupt):
        judged(tmp_path / "cut", trained, EVALUATE=given)
    resumed, _ = judged(tmp_path / "cut", trained, EVALUATE=given)
    assert resumed == whole
    assert len(computed) == 2 + 1 + 2
    judged(tmp_path / "cut", trained, EVALUATE=given, LINEAR_PROBE={"PENALTIES": [1.0]})
    assert len(computed) == 5 + 4  # another probe


# ---- The linear probe on labelled images of other sets, through the engine `evaluate`.


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
