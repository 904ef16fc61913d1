"""`sslengine judge` on tables whose columns have other names than usual."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import sslengine
from sslengine.command.front import main
from tests.command.photos import write_photos, write_table

TYPED = 2
NAMES = ["site", "species", "photo"]
COLUMNS = ["--image-column=photo", "--label-column=species"]
FEW = ["--set=EVALUATE.LABEL_FREE=[rankme]", "--set=NEAREST_NEIGHBOR.TOPK=[1,3]"]


def _table(folder: Path, kind: str, names: list[str] = NAMES) -> Path:
    """Of a folder's images, in no order; what holds the label says nothing else."""
    files = sorted(folder.rglob("*.png"))
    random.Random(0).shuffle(files)
    rows = [(f"p{number % 3}", each.parent.name, str(each)) for number, each in enumerate(files)]
    return write_table(folder.parent / f"{folder.name}_{names[2]}.{kind}", names, rows)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/, val/, and a run that was trained on a table of the first."""
    folder = tmp_path_factory.mktemp("here")
    for split, each in (("train", 6), ("val", 4)):
        write_photos(folder / split, each)
    sslengine.train(
        _table(folder / "train", "csv"), "simclr", model="resnet10t", epochs=1, size=32,
        image_column="photo", label_column="species", workers=0, device="cpu", out=folder / "run",
    )  # fmt: skip
    return folder


def _judged(run: Path, train: Path, val: Path, *options: str) -> dict[str, Any]:
    given = ["--train", str(train), "--val", str(val), *options, *FEW]
    assert main(["judge", str(run), *given]) == 0
    found: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return found


def _scores(report: dict[str, Any]) -> list[Any]:
    return [[each["features"], each["knn"], each["linear"]] for each in report["scores"]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_scores_of_tables_are_those_of_folders(kind: str, here: Path) -> None:
    """By options, by --set, and of the run's own table without either."""
    wanted = _scores(_judged(here / "run", here / "train", here / "val"))
    assert all(knn and linear is not None for _, knn, linear in wanted)
    tables = [_table(here / split, kind) for split in ("train", "val")]
    assert _scores(_judged(here / "run", *tables, *COLUMNS)) == wanted
    # One of the two may be a folder.
    by_set = ["--set=DATA.TRAIN.IMAGE_COLUMN=photo", "--set=DATA.TRAIN.LABEL_COLUMN=species"]
    assert _scores(_judged(here / "run", tables[0], here / "val", *by_set)) == wanted
    if kind == "csv":
        assert _scores(_judged(here / "run", *tables)) == wanted


@pytest.mark.slow
def test_a_table_in_which_no_labels_are_found_is_named(here: Path) -> None:
    """The run's own columns are not those of another table."""
    tables = [
        _table(here / split, "csv", ["site", "species", "path"]) for split in ("train", "val")
    ]
    report = _judged(here / "run", *tables)
    assert not any(knn for _, knn, _ in _scores(report))
    for each in tables:
        note = f"{each}: no labels are found in it. It has path, site, species."
        assert any(note in found and "--label-column" in found for found in report["notes"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{run} --train={train} --val={val} --label-column=spcies",
         "has no column 'spcies'. Did you mean 'species'"),
        ("{run} --label-column=spcies", "has no column 'spcies'. Did you mean 'species'"),
        ("{run} --train={here}/train --val={here}/val --label-column=species",
         "--label-column: it has no effect on {here}/train, {here}/val, read by disk_folder"),
        ("--features {here}/x.npy --label-column=species", "they belong to a run"),
    ],
)  # fmt: skip
def test_what_cannot_be(
    arguments: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, val = (_table(here / split, "csv") for split in ("train", "val"))
    named = {"run": here / "run", "here": here, "train": train, "val": val}
    assert main(["judge", *arguments.format(**named).split()]) == TYPED
    assert message.format(**named) in capsys.readouterr().err


def test_own_images_by_another_column(here: Path) -> None:
    assert main(["judge", str(here / "run"), "--label-column=site", *FEW]) == 0
    report = json.loads((here / "run" / "evaluation.json").read_text())
    assert report["classes"] == ["p0", "p1", "p2"]


@pytest.mark.slow
def test_checkpoints_are_measured_on_columns(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((here / "val").rglob("*.png"))
    rows = [(f"p{number % 3}", each.parent.name, str(each)) for number, each in enumerate(files)]
    table = write_table(tmp_path / "val.csv", NAMES, rows)

    def measured(data: Path, *options: str) -> Any:
        asked = [str(here / "run" / "checkpoints"), f"--data={data}", "--views=0", "--json"]
        assert main(["rank", *asked, *options]) == 0
        return json.loads(capsys.readouterr().out)["metrics"]

    wanted = measured(here / "val")
    assert wanted["knn@20"]["values"][0]["n"] == len(files) // 2
    assert measured(table, *COLUMNS) == wanted
    sites = measured(table, "--image-column=photo", "--label-column=site")
    assert sites["rankme"] == wanted["rankme"]
    assert sites["knn@20"] != wanted["knn@20"]
    by_key = measured(table, "--image-column=photo", "--set=config.DATA.TRAIN.LABEL_COLUMN=site")
    assert by_key["knn@20"] == sites["knn@20"]

    assert main(["rank", str(here / "run" / "checkpoints"), "--label-column=site"]) == TYPED
    assert "say --data" in " ".join(capsys.readouterr().err.split())
