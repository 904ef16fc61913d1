"""The engine that judges frozen features: what is in its report, also at several ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import stats  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional

from sslengine import registry
from sslengine.data.sources.generated import draw_shape
from sslengine.distributed.ranks import is_primary
from sslengine.engines.evaluate import evaluate
from sslengine.engines.judged_networks import normalised
from sslengine.engines.scoring import Asked
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.evaluate.knn import knn_within
from sslengine.evaluate.options import (
    DEFAULT_LABEL_FREE,
    ON_FEATURES,
    ON_IMAGES,
    PROTOCOLS,
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SvmOptions,
)
from sslengine.evaluate.outcome import VERSIONS
from sslengine.evaluate.store import Store
from sslengine.testing.state import flat
from tests.data.pictures import write_picture
from tests.engines.rows import expect_complete
from tests.engines.runs import make_run, screen
from tests.monitor.fake_trackers import FakePackage, entry, fake_package
from tests.ranks import RankPool

assert fake_package  # a fixture

SHAPES: dict[str, Any] = {
    "DATA__TRAIN__DATA_SOURCES": ["shapes"], "DATA__TRAIN__DATA_LIMIT": 60,
    "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": 16, "CHECKPOINT__CHECKPOINT_FREQUENCY": -1,
}  # fmt: skip
FROZEN: dict[str, Any] = {
    **SHAPES,
    "DATA__TRAIN__LABEL_SOURCES": ["shapes"],
    "DATA__TRAIN__TRANSFORMS": [{"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
    "DATA__TRAIN__DROP_LAST": False,
    "DATA__TEST": {"DATA_SOURCES": ["shapes"], "LABEL_SOURCES": ["shapes"], "DATA_LIMIT": 20,
                   "DEFAULT_GRAY_IMG_SIZE": 16, "TRANSFORMS": [{"name": "ToTensor"}]},
    "MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True},
    "LOSS": {"name": "CrossEntropyLoss"},
    "NEAREST_NEIGHBOR": {"TOPK": [1, 5], "L2_NORM_FEATS": True},
}  # fmt: skip


def test_a_trained_trunk_beside_the_untrained_one_and_pixels(
    tmp_path: Path, fake_package: Callable[[str], FakePackage]
) -> None:
    tracker = fake_package("wandb")
    train(make_run(tmp_path, **SHAPES, HOOKS__WRITERS=["json", "log", entry("wandb")]))
    with (tmp_path / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "step", "loss":')  # the run was killed as it wrote
    run = make_run(tmp_path, "evaluate", **FROZEN)
    evaluate(run)
    report = json.loads((tmp_path / "evaluation.json").read_text())
    scores = {score["features"]: score for score in report["scores"]}
    assert set(scores) == {"trained", "untrained", "raw pixels"}
    for score in scores.values():
        assert set(score["knn"]) == {"1", "5"}
        assert all(0 <= value <= 100 for value in [*score["knn"].values(), score["linear"]])
        assert list(score["label_free"]) == DEFAULT_LABEL_FREE
        assert {each["n"] for each in score["label_free"].values()} == {60}
        assert "100 rows" in score["label_free"]["id_est"]["why"]
        for name, value in (("knn_5", score["knn"]["5"]), ("linear", score["linear"])):
            tested = stats.binomtest(round(value / 5), 20).proportion_ci(0.95, "wilson")
            wanted = [100 * tested.low, 100 * tested.high]
            assert score["intervals"][name] == pytest.approx(wanted, abs=1e-4)
        assert score["about"]["images"] == {"train": 60, "test": 20}
        assert score["about"]["view"] == [{"name": "ToTensor"}]
        assert score["about"]["chosen_on"]["linear"].endswith("of 60 training images")
        name = f"judge/{score['features']}/{score['about']['layer']}/linear"
        assert tracker.scores[name] == pytest.approx(score["linear"])
    assert len(tracker.runs) == 1
    assert not any("equal a training one" in each for each in report["notes"])
    about = scores["trained"]["about"]
    assert (about["network"], about["layer"], about["trunk"]) == ("model", "flatten", "resnet")
    assert about["weights_sha256"] != scores["untrained"]["about"]["weights_sha256"]
    stores = map(Store.read, (path.parent for path in tmp_path.rglob("manifest.json")))
    (images,) = (rows for each in stores if len(rows := _of_pixels(each)) == 60)
    shares = np.linalg.svd(images, compute_uv=False)
    shares = shares / shares.sum() + 1e-7
    expected = np.exp(-(shares * np.log(shares)).sum())
    found = scores["raw pixels"]["label_free"]["rankme"]["value"]
    assert found == pytest.approx(expected, rel=1e-6)
    # Training moved the weights: the features are other ones.
    assert scores["trained"] != {**scores["untrained"], "features": "trained"}
    text = screen(run)
    for word in (
        "kNN (k=5)",
        "linear",
        "without labels, TRAIN",
        "trained, flatten",
        "chance",
        "chosen      the linear probe's penalty by",
        "id_est: it needs 100 rows, there are 60",
        "at the last step",
        "model_final_checkpoint_phase",
        "metrics.jsonl",
    ):
        assert word in text
    assert "kNN" in text.partition("chance")[2]
    assert (tmp_path / "config_evaluate.yaml").exists()


def _of_pixels(store: Store) -> NDArray[np.float64]:
    if store.layers != ["16x16"]:
        return np.zeros((0, 0))
    return store.layer("16x16").tensor().flatten(1).double().numpy()


def _scores(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    report = json.loads((folder / "evaluation.json").read_text())
    return report, {score["features"]: score for score in report["scores"]}


@pytest.mark.slow
def test_few_labels_are_judged_as_far_as_they_go(tmp_path: Path) -> None:
    """Twelve images of ten classes, and all 200 neighbours; then a single class."""
    train(make_run(tmp_path, **SHAPES))
    few = {**FROZEN, "DATA__TRAIN__DATA_LIMIT": 12, "NEAREST_NEIGHBOR": {}}
    run = make_run(tmp_path, "evaluate", **few)
    evaluate(run)
    report, scores = _scores(tmp_path)
    assert report["knn"] == {"metric": "cosine", "sigma": 0.1}
    assert all(0 <= score["linear"] <= 100 for score in scores.values())
    neighbours, probe, *ends = report["notes"]
    told = "is an end of those tried", "answers are the same"
    assert all(any(some in each for some in told) for each in ends)
    assert neighbours == "kNN with k=200: there are only 12 training images, and all of them vote"
    assert "held-out samples, at least one of each class except the" in probe
    assert probe in screen(run)
    evaluate(make_run(tmp_path, "evaluate", **{**few, "DATA__TRAIN__DATA_LIMIT": 1}))
    report, scores = _scores(tmp_path)
    assert [score["linear"] for score in scores.values()] == [None] * 3
    # All test images are of the one class that votes, or not: two of twenty are.
    assert [score["knn"]["200"] for score in scores.values()] == [10.0] * 3
    assert "are all the same" in report["notes"][-1]


@pytest.mark.slow
def test_images_without_a_label_are_left_out(tmp_path: Path) -> None:
    """As if the set had only the others: every third label in a .npy is -1."""
    paths, labels = tmp_path / "paths.npy", tmp_path / "labels.npy"
    images = [str(tmp_path / f"{number}.png") for number in range(24)]
    for number, path in enumerate(images):
        write_picture(Path(path), number, 16)
    numbers = np.arange(24) % 2
    np.save(paths, np.array(images))
    source = {"DATA_SOURCES": ["disk_filelist"], "LABEL_SOURCES": ["disk_filelist"],
              "DATA_PATHS": [str(paths)], "LABEL_PATHS": [str(labels)],
              "TRANSFORMS": [{"name": "ToTensor"}]}  # fmt: skip
    both = {f"DATA__TRAIN__{key}": value for key, value in source.items()}
    frozen = {**FROZEN, **both, "DATA__TRAIN__DATA_LIMIT": -1, "DATA__TEST": source}
    train(make_run(tmp_path / "run", **SHAPES))
    weights = str(tmp_path / "run" / "checkpoints" / "checkpoint.torch")

    def judged(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
        evaluate(make_run(tmp_path / folder, "evaluate", **frozen,
                          MODEL__WEIGHTS_INIT__PARAMS_FILE=weights))  # fmt: skip
        return _scores(tmp_path / folder)

    known = np.arange(24) % 3 != 0
    np.save(labels, np.where(known, numbers, -1))
    report, scores = judged("gaps")
    assert "8 of 24 images of TRAIN have no label: left out" in report["notes"]
    assert "8 of 24 images of TEST have no label: left out" in report["notes"]
    assert any(each.startswith("16 of 16 test images equal a training") for each in report["notes"])
    np.save(paths, np.array(images)[known])
    np.save(labels, numbers[known])
    assert judged("without")[1] == scores


def test_without_test_images_each_training_image_by_the_others(tmp_path: Path) -> None:
    train(make_run(tmp_path, **SHAPES, OPTIMIZER__num_epochs=1))
    run = make_run(tmp_path, "evaluate", **{**FROZEN, "DATA__TEST": {"DATA_SOURCES": []}})
    evaluate(run)
    report, scores = _scores(tmp_path)
    (store,) = (each for each in map(Store.read, _stores(tmp_path)) if each.layers == ["16x16"])
    pixels = store.layer("16x16").tensor().flatten(1)
    assert report["chance"] == pytest.approx(100 * float(store.targets.bincount().max()) / 60)
    for k in (1, 5):
        expected = knn_within(pixels, store.targets, [k])[k][0]
        assert scores["raw pixels"]["knn"][str(k)] == pytest.approx(expected)
    assert scores["trained"]["about"]["knn_on"] == "TRAIN, each image by the others"
    assert "kNN: without test labels each image of TRAIN is classified by the others" in screen(run)


def _stores(folder: Path) -> list[Path]:
    return [path.parent for path in folder.rglob("manifest.json")]


@pytest.mark.slow
def test_features_that_float16_cannot_hold(tmp_path: Path) -> None:
    """Those of one network: the others are scored, the note says what to do."""
    train(make_run(tmp_path, **SHAPES, OPTIMIZER__num_epochs=1))
    path = tmp_path / "checkpoints" / "checkpoint.torch"
    kept = torch.load(path, weights_only=False)
    trunk = kept["classy_state_dict"]["base_model"]["model"]["trunk"]
    last = [name for name in trunk if name.endswith("bn2.weight")][-1]
    trunk[last] *= 1e7
    torch.save(kept, tmp_path / "large.torch")
    file = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(tmp_path / "large.torch")}
    evaluate(make_run(tmp_path, "evaluate", **FROZEN, **file, EVALUATE__DTYPE="float16"))
    report, scores = _scores(tmp_path)
    assert [len(score["knn"]) for score in scores.values()] == [0, 2, 2]
    for what in ("Nearest neighbours", "Linear probe"):
        (note,) = [each for each in report["notes"] if what in each]
        assert note.startswith(f"trained, flatten: {what}: some training features are NaN or inf")
        assert "config.EVALUATE.DTYPE=bfloat16" in note
    evaluate(make_run(tmp_path, "evaluate", **FROZEN, **file, EVALUATE__DTYPE="bfloat16"))
    report, scores = _scores(tmp_path)
    assert [len(score["knn"]) for score in scores.values()] == [2, 2, 2]
    assert not any("NaN" in each for each in report["notes"])


def test_neighbours_are_saved_before_a_probe_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Stopped

    train(make_run(tmp_path, **SHAPES))
    monkeypatch.setattr("sslengine.engines.scoring.linear_probe", stop)
    with pytest.raises(Stopped):
        evaluate(make_run(tmp_path, "evaluate", **FROZEN))
    _, scores = _scores(tmp_path)
    assert all(len(score["knn"]) == 2 and score["linear"] is None for score in scores.values())


def test_nothing_trained_nothing_judged(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there are no trained weights at .*Train first"):
        evaluate(make_run(tmp_path, "evaluate", **FROZEN))


@pytest.mark.slow
def test_without_labels_the_metrics_that_need_none(tmp_path: Path) -> None:
    """Of images that no source has classes for, with and without a test set."""
    train(make_run(tmp_path, **SHAPES))
    for test in ({"DATA_SOURCES": []}, {**FROZEN["DATA__TEST"], "LABEL_SOURCES": []}):
        given = {**FROZEN, "DATA__TRAIN__LABEL_SOURCES": [], "DATA__TEST": test}
        given["DATA__TRAIN__LABEL_TYPE"] = test["LABEL_TYPE"] = "sample_index"
        run = make_run(tmp_path, "evaluate", **given)
        evaluate(run)
        report, scores = _scores(tmp_path)
        assert set(scores) == {"trained", "untrained", "raw pixels"}
        for score in scores.values():
            assert (score["knn"], score["linear"]) == ({}, None)
            assert score["label_free"]["rankme"]["value"] > 1
        assert report["notes"][0].startswith("the images have no labels: kNN")
        assert "rankme" in screen(run)


@pytest.mark.slow
def test_a_reference_several_seeds_and_a_published_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference has the weights of the run, so it is as good, if it sees the same pixels."""
    monkeypatch.setattr("sslengine.evaluate.options.COSTS", 4)
    train(make_run(tmp_path, **SHAPES))
    file = str(tmp_path / "checkpoints" / "checkpoint.torch")
    same = {"WEIGHTS": file, "MEAN": [0.0] * 3, "STD": [1.0] * 3}
    evaluated = {"UNTRAINED": 3, "PUBLISHED": "dinov2", "REFERENCE": same, "LABEL_FREE": []}
    run = make_run(tmp_path, "evaluate", **{**FROZEN, "EVALUATE": evaluated})
    evaluate(run)
    report, scores = _scores(tmp_path)
    assert list(scores) == ["trained", "untrained", "reference", "raw pixels"]
    assert scores["reference"]["knn"] == scores["trained"]["knn"]
    assert scores["reference"]["about"]["weights"] == file
    assert scores["reference"]["about"]["normalised"] == {"mean": [0.0] * 3, "std": [1.0] * 3}
    assert (report["published"], report["knn"]["sigma"]) == ("dinov2", 0.07)
    assert list(scores["trained"]["knn"]) == ["10", "20", "100", "200"]
    assert scores["trained"]["about"]["chosen_on"] == {"linear": "10 of 60 training images"}
    seeds = scores["untrained"]
    drawn = seeds["about"]["values"]["knn_10"]
    assert len(drawn) == seeds["about"]["number_of_seeds"] == len(seeds["about"]["seeds"]) == 3
    assert seeds["knn"]["10"] == pytest.approx(np.mean(drawn))
    half = stats.t.ppf(0.975, 2) * np.std(drawn, ddof=1) / np.sqrt(3)
    wanted = [np.mean(drawn) - half, np.mean(drawn) + half]
    assert seeds["intervals"]["knn_10"] == pytest.approx(wanted)
    assert "untrained: the mean of 3 seeds" in screen(run)
    other = {**evaluated, "REFERENCE": {"WEIGHTS": file, "MEAN": [0.5], "STD": [0.5]}}
    with pytest.raises(ConfigError, match="it is for images of 1 channels"):
        evaluate(make_run(tmp_path, "evaluate", **{**FROZEN, "EVALUATE": other}))


def test_a_reference_sees_images_as_it_was_trained_on() -> None:
    draw = torch.Generator().manual_seed(0)
    image = torch.rand(2, 3, 4, 4, generator=draw)
    (mean, std), (other, scale) = ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), ([0.1, 0.2, 0.3], [2.0, 3, 4])
    found = normalised(lambda seen: {"seen": seen}, (mean, std), (other, scale))
    given, wanted = (functional.normalize(image, *each) for each in ((mean, std), (other, scale)))
    torch.testing.assert_close(found(given)["seen"], wanted)


@pytest.mark.slow
def test_protocols_that_are_named_are_reported(tmp_path: Path) -> None:
    """Those that have too few images say so; the others have metrics."""
    train(make_run(tmp_path, **SHAPES))
    names = ["few_shot_knn", "svm", "retrieval"]
    resized = [{"name": "Resize", "size": 16}, {"name": "ToTensor"}]
    given = {**FROZEN, "DATA__TRAIN__TRANSFORMS": resized,
             "DATA__TEST": {**FROZEN["DATA__TEST"], "TRANSFORMS": resized}}  # fmt: skip
    run = make_run(tmp_path, "evaluate", **given, EVALUATE__PROTOCOLS=names)
    evaluate(run)
    report, scores = _scores(tmp_path)
    expect_complete(report)
    view = scores["trained"]["about"]["view"]
    assert view == [{**resized[0], "interpolation": "bilinear"}, {"name": "ToTensor"}]
    assert scores["trained"]["protocols"]["few_shot_knn"]["seeds"] == [0, 1, 2, 3, 4]
    for score in scores.values():
        assert list(score["protocols"]) == names
        for name, found in score["protocols"].items():
            assert found["metrics"] or found["notes"], name
            assert all(0 <= value <= 100 for value in found["metrics"].values())
    few = scores["trained"]["protocols"]["few_shot_knn"]
    assert "1 shots, k=1" in few["metrics"]
    assert any("20" in note for note in few["notes"])  # sixty images of ten classes
    assert scores["trained"]["protocols"] != scores["untrained"]["protocols"]
    text = screen(run)
    assert "few_shot_knn" in text
    assert "mAP" in text


def test_every_protocol_that_a_config_may_name_is_there() -> None:
    asked = Asked(EvaluateOptions(), NearestNeighborOptions(), LinearProbeOptions(), SvmOptions())
    rows = torch.ones(1, 1)
    assert tuple(asked.protocols((rows, rows, rows, rows), None)) == ON_FEATURES
    assert {*ON_IMAGES} == {*registry.PROTOCOLS.names()}
    assert {*PROTOCOLS} <= {*VERSIONS}


# ---- The whole report of `evaluate` at one rank and at several.


ASKED: dict[str, Any] = {
    **FROZEN,
    "EVALUATE": {
        "DENSE": {"IMAGES": 6}, "SEGMENTATION": {"ITERATIONS": 20}, "LABEL_FREE": ["rankme", "clid"],
        "OUTSIDE": {"SOURCE": "upright_shapes", "LIMIT": 10},
        "OTHER_SETS": {"upright": {"SOURCE": "upright_shapes", "LIMIT": 10, "ANSWERS": "shown"}},
        "CORRUPTIONS": {"KINDS": ["shot_noise", "fog"], "SEVERITIES": [3]},
    },
    "LINEAR_PROBE": {"PENALTIES": [10.0]},
    "SVM": {"costs": {"costs_list": [0.1, 1.0]}, "max_iter": 100,
            "low_shot": {"k_values": [1, 4], "sample_inds": [1]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    train(make_run(folder, **SHAPES, OPTIMIZER__num_epochs=1))
    for number in range(6):
        for kind in ("original", "strong"):
            path = folder / "copies" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_shape("TRAIN", number, 16 + 4 * (kind == "strong"))).save(path)
    return str(folder / "checkpoints" / "checkpoint.torch")


def judged(folder: Path, weights: str, ranks: int, protocols: list[str]) -> dict[str, Any]:
    """All values of the report by their names."""
    copies = {"PATH": str(Path(weights).parents[1] / "copies"), "SIDE": 32}
    evaluated = {**ASKED["EVALUATE"], "PROTOCOLS": protocols, "COPIES": copies}
    asked = {**ASKED, "EVALUATE": evaluated}
    evaluate(make_run(folder, "evaluate", **asked, MODEL__WEIGHTS_INIT__PARAMS_FILE=weights,
                      DISTRIBUTED__NUM_PROC_PER_NODE=ranks))  # fmt: skip
    return flat(json.loads((folder / "evaluation.json").read_text())) if is_primary() else {}


# The others take seconds: regressions on few images and all pixels, and passes over the images.
QUICK = ["few_shot_knn", "svm", "low_shot_svm", "retrieval", "calibration", "per_class"]


@pytest.mark.parametrize(
    ("ranks", "protocols"),
    [(2, QUICK), *(pytest.param(each, [*PROTOCOLS], marks=pytest.mark.slow) for each in (2, 4))],
)
def test_the_report_is_the_same(
    ranks: int, protocols: list[str], weights: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every value: kNN, linear probe, label-free metrics, protocols, intervals, notes.

    Sums over ranks round otherwise: allow for that in float64.
    """
    one = judged(tmp_path / "alone", weights, 1, protocols)
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[ranks])
    found, *_ = pool.run(judged, tmp_path / "shared", weights, ranks, protocols)
    assert list(found) == list(one)
    for name, value in one.items():
        number = isinstance(value, float)
        assert found[name] == (pytest.approx(value, rel=1e-9, nan_ok=True) if number else value), (
            name
        )
    assert {name.split(".")[3] for name in found if ".protocols." in name} == {*protocols}
