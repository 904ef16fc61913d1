"""Classes and their numbers in training, tests and judging, and images that are held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.distributed.ranks import rank
from sslengine.engines.evaluate import evaluate
from sslengine.engines.features import extract_features
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError, DataError
from sslengine.predictor import Predictor
from sslengine.predictor.report import as_json, as_text
from tests.config.recipes import resolved
from tests.data.pictures import write_tree
from tests.engines.runs import make_run, screen
from tests.ranks import RankPool

# In order of name, and not the numbers that val/{cat,dog} would have by themselves.
COLOURS = {"bird": (220, 40, 40), "cat": (40, 220, 40), "dog": (40, 40, 220)}
PRESENT = {"train": ("bird", "cat", "dog"), "val": ("cat", "dog")}
EACH = {"train": 8, "val": 3}
KINDS = ("folder", "csv", "parquet", "npy")
Changes = dict[str, Any]


def _write(root: Path) -> Path:
    """Folders of noisy colours, and lists of the same images, whose class the list alone tells."""
    draw = np.random.default_rng(0)
    for split, names in PRESENT.items():
        files, labels = [], []
        for name in names:
            for number in range(EACH[split]):
                pixels = np.array(COLOURS[name]) + draw.integers(-20, 21, (8, 8, 3))
                file = root / split / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(file)
                files.append(str(file))
                labels.append(name)
        lines = ["path,label", *(f"{one},{two}" for one, two in zip(files, labels))]
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")
        np.save(root / f"{split}_images.npy", np.array(files))
        np.save(root / f"{split}_labels.npy", np.array(labels))
        _write_parquet(root / f"{split}.parquet", files, labels)
    return root


def _write_parquet(file: Path, files: list[str], labels: list[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"path": files, "label": labels}), file)


def _source(root: Path, kind: str, split: str) -> Changes:
    if kind == "folder":
        return {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(root / split)],
                "LABEL_SOURCES": ["disk_folder"]}  # fmt: skip
    if kind == "npy":
        return {"DATA_SOURCES": ["disk_filelist"], "DATA_PATHS": [f"{root}/{split}_images.npy"],
                "LABEL_SOURCES": ["disk_filelist"],
                "LABEL_PATHS": [f"{root}/{split}_labels.npy"]}  # fmt: skip
    return {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / f"{split}.{kind}")],
            "LABEL_SOURCES": ["csv_filelist"]}  # fmt: skip


def _changes(root: Path, kind: str = "folder", **more: Any) -> Changes:
    common = {"LABEL_TYPE": "standard", "BATCHSIZE_PER_REPLICA": 6, "DROP_LAST": False,
              "TRANSFORMS": [{"name": "ToTensor"}],
              "COLLATE_FUNCTION": "default_collate"}  # fmt: skip
    return {
        "TEST_MODEL": True,
        "DATA__TRAIN": {**common, **_source(root, kind, "train")},
        "DATA__TEST": {**common, **_source(root, kind, "val")},
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 3]}]],
        "METERS": {"name": "accuracy_list_meter",
                   "accuracy_list_meter": {"num_meters": 1, "topk_values": [1]}},
        "LOSS": {"name": "CrossEntropyLoss"},
        # Without statistics to be learned over many steps.
        "MODEL__TRUNK__RESNETS__NORM": "GroupNorm",
        "MODEL__TRUNK__RESNETS__GROUPNORM_GROUPS": 1,
        "OPTIMIZER__name": "adamw",
        "OPTIMIZER__param_schedulers__lr__start_value": 0.01,
        "OPTIMIZER__num_epochs": 10,
        "CHECKPOINT__CHECKPOINT_FREQUENCY": -1,
        **more,
    }  # fmt: skip


def _accuracy(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "phase" and line["split"] == "test"][-1]
    value: float = last["accuracy_list_meter"]["top_1"]["0"]
    return value


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run = make_run(folder, **_changes(images))
    train(run)
    run.describe()
    return folder


def test_a_class_has_its_number_in_train_and_test(trained: Path) -> None:
    assert _accuracy(trained) == 100.0
    state = torch.load(trained / "checkpoints" / "checkpoint.torch")["classy_state_dict"]
    assert state["classes"] == [["bird", "cat", "dog"]]


def test_so_it_has_at_two_ranks(images: Path, tmp_path: Path, two_ranks: RankPool) -> None:
    changes = _changes(images, "parquet", DISTRIBUTED__NUM_PROC_PER_NODE=2)
    changes["DATA__TRAIN"]["BATCHSIZE_PER_REPLICA"] = 3
    two_ranks.run(_train_on_rank, tmp_path, changes)
    assert _accuracy(tmp_path) == 100.0


def _train_on_rank(folder: Path, changes: Changes) -> int:
    train(make_run(folder, **changes))
    return rank()


def test_judging_and_features_have_the_same_numbers(images: Path, trained: Path) -> None:
    frozen = {"MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True,
                                               "EXTRACT_TRUNK_FEATURES_ONLY": True},
              "NEAREST_NEIGHBOR": {"TOPK": 3}}  # fmt: skip
    evaluate(make_run(trained, "evaluate", **_changes(images, **frozen)))
    report = json.loads((trained / "evaluation.json").read_text())
    assert report["classes"] == ["bird", "cat", "dog"]
    assert all("is an end of those tried" in each for each in report["notes"])
    scores = {each["features"]: each for each in report["scores"]}
    assert scores["raw pixels"]["knn"] == {"3": 100.0}
    assert scores["raw pixels"]["linear"] == 100.0
    extract_features(make_run(trained, "extract_features", **_changes(images, **frozen)))
    for split, expected in (("train", [0] * 8 + [1] * 8 + [2] * 8), ("test", [1] * 3 + [2] * 3)):
        file = trained / "features" / f"rank0_chunk0_{split}_flatten_targets.npy"
        assert np.load(file).tolist() == expected


def test_weights_of_other_classes_are_not_taken_for_these(
    images: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fine-tuning takes the heads as well, and says so; judging makes heads of its own."""
    (tmp_path / "images").mkdir()
    for split in ("train", "val"):
        for old, new in (("cat", "apple"), ("dog", "dog"), ("bird", "bird")):
            if (images / split / old).exists():
                (tmp_path / "images" / split).mkdir(exist_ok=True)
                (tmp_path / "images" / split / new).symlink_to(images / split / old)
    file = {"PARAMS_FILE": str(trained / "checkpoints" / "checkpoint.torch")}
    changes = _changes(tmp_path / "images", MODEL__WEIGHTS_INIT=file, OPTIMIZER__num_epochs=1)
    train(make_run(tmp_path / "run", **changes))
    assert "the checkpoint's classes (bird, cat, dog) are not those of" in caplog.text
    run = make_run(tmp_path / "judged", "evaluate", **changes)
    evaluate(run)
    assert "note        the checkpoint's classes (bird, cat, dog)" in screen(run)
    # Going on with other names for the same numbers would confuse them.
    changes = _changes(tmp_path / "images", OPTIMIZER__num_epochs=11)
    with pytest.raises(CheckpointError, match="classes are bird, cat, dog; this run's are apple"):
        train(make_run(trained, **changes))


def test_a_class_that_train_lacks(images: Path, tmp_path: Path) -> None:
    changes = _changes(images)
    changes["DATA__TRAIN"], changes["DATA__TEST"] = changes["DATA__TEST"], changes["DATA__TRAIN"]
    with pytest.raises(DataError) as error:
        train(make_run(tmp_path, **changes))
    for part in ("DATA.TEST.LABEL_SOURCES.0: 1 of its classes", "bird", "train/bird/0.png",
                 "DATA.TRAIN.LABEL_SOURCES.0", "cat, dog"):  # fmt: skip
        assert part in str(error.value)


def test_predictions_have_names(images: Path, trained: Path) -> None:
    predictor = Predictor(trained, nearest=1, device="cpu")
    file = images / "val" / "cat" / "0.png"
    found = {str(file): predictor(file)}
    report = as_json(predictor, found)
    assert report["class_names"] == ["bird", "cat", "dog"]
    text = as_text(predictor, found)
    assert "classes   cat: " in text
    assert "class cat)" in text


# ---- A share of TRAIN's images as TEST: trained, tested and judged, by one rank and by two.


FROZEN = {
    "MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True}
}
NAMES = [f"{kind}/{number}.png" for kind in ("bird", "cat") for number in range(8)]


def _changes_hold_out(root: Path, **more: Any) -> Changes:
    """TEST has neither sources nor paths."""
    common = {"BATCHSIZE_PER_REPLICA": 2, "DROP_LAST": False, "TRANSFORMS": [{"name": "ToTensor"}],
              "COLLATE_FUNCTION": "default_collate", "LABEL_TYPE": "standard"}  # fmt: skip
    return {
        "TEST_MODEL": True,
        "DATA__TRAIN": {**common, "DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(root)],
                        "LABEL_SOURCES": ["disk_folder"]},
        "DATA__TEST": common,
        "DATA__HOLD_OUT": {"SHARE": 0.25, "STRATIFIED": True},
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 2]}]],
        "METERS": {"name": "accuracy_list_meter",
                   "accuracy_list_meter": {"num_meters": 1, "topk_values": [1]}},
        "LOSS": {"name": "CrossEntropyLoss"},
        "NEAREST_NEIGHBOR": {"TOPK": 3},
        "OPTIMIZER__num_epochs": 1,
        **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def images_hold_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("images_hold_out"), *NAMES)


def _train(folder: Path, changes: Changes) -> None:
    train(make_run(folder, **changes))
    extract_features(make_run(folder, "extract_features", **changes, **FROZEN))


def _found(folder: Path, split: str, what: str) -> list[int]:
    parts = sorted((folder / "features").glob(f"rank*_{split}_flatten_{what}.npy"))
    return np.concatenate([np.load(part) for part in parts]).tolist()  # type: ignore[no-any-return]


@pytest.mark.usefixtures("progress_at_once")
def test_trained_and_judged(
    images_hold_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = _changes_hold_out(images_hold_out)
    _train(tmp_path, changes)
    assert sorted(_found(tmp_path, "train", "targets")) == [0] * 6 + [1] * 6
    assert sorted(_found(tmp_path, "test", "targets")) == [0] * 2 + [1] * 2
    run = make_run(tmp_path, "evaluate", **changes, **FROZEN)
    evaluate(run)
    assert "features of test by 3 networks: 4 images in " in capsys.readouterr().err


def test_a_test_set_that_is_another(images_hold_out: Path) -> None:
    changes = _changes_hold_out(images_hold_out)
    changes["DATA__TEST"] = {**changes["DATA__TEST"], "DATA_SOURCES": ["synthetic"]}
    with pytest.raises(ConfigError, match=r"DATA.TEST.DATA_SOURCES: with .*HOLD_OUT.SHARE"):
        make_run(images_hold_out, **changes)
    changes = _changes_hold_out(images_hold_out)
    changes["DATA__TRAIN"] = {**changes["DATA__TRAIN"], "LABEL_SOURCES": []}
    with pytest.raises(
        ConfigError, match=r"HOLD_OUT.STRATIFIED: it requires labels.*TRAIN.LABEL_SOURCES"
    ):
        make_run(images_hold_out, **changes)


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        ({}, ("file", "kind")),
        ({"IMAGE_COLUMN": "", "LABEL_COLUMN": ""}, ("file", "kind")),
        ({"DATA_SOURCES": ["csv_filelist"], "IMAGE_COLUMN": ""}, ("file", "kind")),
        ({"LABEL_COLUMN": "other"}, ("file", "other")),
    ],
)
def test_keys_of_the_source_of_train(keys: Changes, columns: tuple[str, str]) -> None:
    """Nothing is TRAIN's value; the labels of TEST may be others."""
    test = resolved(**_table(keys)).config.DATA.TEST
    assert (["csv_filelist"], *columns) == (test.DATA_SOURCES, test.IMAGE_COLUMN, test.LABEL_COLUMN)


def _table(test: Changes) -> Changes:
    table = {
        "DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": ["a.csv"], "LABEL_SOURCES": ["csv_filelist"],
        "IMAGE_COLUMN": "file", "LABEL_COLUMN": "kind", "BATCHSIZE_PER_REPLICA": 4,
    }  # fmt: skip
    return {
        "DATA__TRAIN": table, "DATA__TEST": test, "DATA__HOLD_OUT": {"SHARE": 0.25},
        "LOSS": {"name": "CrossEntropyLoss"},
    }  # fmt: skip
