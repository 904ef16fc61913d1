"""A share of TRAIN's images as TEST: trained, tested and judged, by one rank and by two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.engines.evaluate import evaluate
from sslengine.engines.extract_features import extract_features
from sslengine.engines.train import train
from sslengine.errors import ConfigError
from tests.config.recipes import resolved
from tests.data.pictures import write_tree
from tests.engines.runs import make_run
from tests.ranks import RankPool

Changes = dict[str, Any]
FROZEN = {
    "MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True}
}
NAMES = [f"{kind}/{number}.png" for kind in ("bird", "cat") for number in range(8)]


def _changes(root: Path, **more: Any) -> Changes:
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
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("images"), *NAMES)


def _train(folder: Path, changes: Changes) -> None:
    train(make_run(folder, **changes))
    extract_features(make_run(folder, "extract_features", **changes, **FROZEN))


def _found(folder: Path, split: str, what: str) -> list[int]:
    parts = sorted((folder / "features").glob(f"rank*_{split}_flatten_{what}.npy"))
    return np.concatenate([np.load(part) for part in parts]).tolist()  # type: ignore[no-any-return]


@pytest.mark.usefixtures("progress_at_once")
def test_trained_and_judged(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = _changes(images)
    _train(tmp_path, changes)
    assert sorted(_found(tmp_path, "train", "targets")) == [0] * 6 + [1] * 6
    assert sorted(_found(tmp_path, "test", "targets")) == [0] * 2 + [1] * 2
    run = make_run(tmp_path, "evaluate", **changes, **FROZEN)
    evaluate(run)
    assert "features of test by 3 networks: 4 images in " in capsys.readouterr().err


@pytest.mark.slow
def test_at_two_ranks(images: Path, tmp_path: Path, two_ranks: RankPool) -> None:
    changes = _changes(images, DISTRIBUTED__NUM_PROC_PER_NODE=2)
    two_ranks.run(_train, tmp_path, changes)
    assert sorted(_found(tmp_path, "train", "targets")) == [0] * 6 + [1] * 6
    assert sorted(_found(tmp_path, "test", "targets")) == [0] * 2 + [1] * 2


def test_a_table_with_a_column_for_each_class(tmp_path: Path) -> None:
    write_tree(tmp_path, *NAMES)
    lines = [
        f"{name},{number % 2},{'' if number % 3 else 1.0}" for number, name in enumerate(NAMES)
    ]
    (tmp_path / "list.csv").write_text("\n".join(["path,large,small", *lines]))
    changes = _changes(tmp_path, DATA__HOLD_OUT={"SHARE": 0.25}, METERS={"names": []})
    changes["DATA__TRAIN"] |= {
        "DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [f"{tmp_path}/list.csv"],
        "LABEL_SOURCES": ["csv_filelist"], "LABEL_COLUMNS": ["small", "large"],
    }  # fmt: skip
    changes["LOSS"] = {"name": "bce_logits_multiple_output_single_target"}
    _train(tmp_path / "run", changes)
    rows = _found(tmp_path / "run", "train", "targets") + _found(
        tmp_path / "run", "test", "targets"
    )
    expected = [[-1 if number % 3 else 1, number % 2] for number in range(len(NAMES))]
    assert sorted(rows) == sorted(expected)


def test_a_test_set_that_is_another(images: Path) -> None:
    changes = _changes(images)
    changes["DATA__TEST"] = {**changes["DATA__TEST"], "DATA_SOURCES": ["synthetic"]}
    with pytest.raises(ConfigError, match=r"DATA.TEST.DATA_SOURCES: with .*HOLD_OUT.SHARE"):
        make_run(images, **changes)
    changes = _changes(images)
    changes["DATA__TRAIN"] = {**changes["DATA__TRAIN"], "LABEL_SOURCES": []}
    with pytest.raises(
        ConfigError, match=r"HOLD_OUT.STRATIFIED: it requires labels.*TRAIN.LABEL_SOURCES"
    ):
        make_run(images, **changes)


@pytest.mark.parametrize(
    ("hold_out", "message"),
    [
        ({"SHARE": 1.0}, "HOLD_OUT.SHARE: expected "),
        ({"SHARE": 0.1, "STRATIFIED": True, "GROUP_COLUMN": "a"}, "HOLD_OUT.STRATIFIED: not tog"),
        ({"SEED": 3}, "HOLD_OUT.SHARE: with 0 nothing is held out"),
    ],
)
def test_values_that_cannot_be(images: Path, hold_out: Changes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_run(images, **_changes(images, DATA__HOLD_OUT=hold_out))


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


def test_another_column_of_images() -> None:
    with pytest.raises(
        ConfigError, match=r"TEST.IMAGE_COLUMN: .*SHARE.* TRAIN \(file\), got other"
    ):
        resolved(**_table({"IMAGE_COLUMN": "other"}))


def _table(test: Changes) -> Changes:
    table = {
        "DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": ["a.csv"], "LABEL_SOURCES": ["csv_filelist"],
        "IMAGE_COLUMN": "file", "LABEL_COLUMN": "kind", "BATCHSIZE_PER_REPLICA": 4,
    }  # fmt: skip
    return {
        "DATA__TRAIN": table,
        "DATA__TEST": test,
        "DATA__HOLD_OUT": {"SHARE": 0.25},
        "LOSS": {"name": "CrossEntropyLoss"},
    }
