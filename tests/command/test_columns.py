"""Tables with columns of their own names, several labels, and groups that are left out as a whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sslengine
from sslengine.command import judge
from sslengine.command.data import run_keys
from sslengine.command.front import main
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from tests.command.photos import SMALL, config_of, write_photos, write_table
from tests.data.pictures import write_picture
from tests.engines.runs import make_run

NAMES = ["photo", "species", "patient"]
RUN = ["--method=simclr", "--model=resnet10t", *SMALL]


def rows_of(photos: Path) -> list[tuple[str, str, str]]:
    """Of each class two photos of each of four patients."""
    files = sorted(photos.rglob("*.png"))
    return [(str(f.relative_to(photos)), f.parent.name, f"p{int(f.stem) // 2}") for f in files]


def table_of(photos: Path, kind: str) -> Path:
    return write_table(photos / f"table.{kind}", NAMES, rows_of(photos))


def datasets_of(config: Any) -> list[SSLDataset]:
    data = read(config, DataOptions)
    return [SSLDataset(getattr(data, split), split, 0, hold_out=data.HOLD_OUT)
            for split in ("TRAIN", "TEST")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("progress_at_once")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_groups_are_trained_on_or_judged_on(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(write_photos(tmp_path / "photos"), kind)
    columns = ["--image-column=photo", "--label-column=species", "--group=patient"]
    out = tmp_path / "run"
    arguments = [str(table), *RUN, "--val=0.25", *columns]
    assert main(["train", *arguments, "--out", str(out)]) == 0
    assert "config.DATA.HOLD_OUT.GROUP_COLUMN=patient" in capsys.readouterr().out

    train, test = datasets_of(open_run(out).config)
    patient = {str(table.parent / path): group for path, _, group in rows_of(table.parent)}
    groups = [{patient[each.name(n)] for n in range(len(each))} for each in (train, test)]
    assert not groups[0] & groups[1]
    assert groups[0] | groups[1] == {"p0", "p1", "p2", "p3"}
    assert len(test) == 4

    assert main(["judge", str(out)]) == 0
    told = capsys.readouterr().err
    assert "features of train by 3 networks: 12 images in " in told
    assert "features of test by 3 networks: 4 images in " in told
    assert chosen_on(out) == "4 of 12 training images in whole groups"
    # Of the same table the run knows the columns; of another it does not.
    rows = sslengine.embed(out, table, workers=0)
    assert rows.labels == [species for _, species, _ in rows_of(table.parent)]
    assert run_keys(out, str(table), {}) == {"IMAGE_COLUMN": "photo", "LABEL_COLUMN": "species"}
    assert run_keys(out, "other.csv", {"IMAGE_COLUMN": "a"}) == {"IMAGE_COLUMN": "a"}


def chosen_on(run: Path) -> str:
    scores = json.loads((run / "evaluation.json").read_text())["scores"]
    return str(scores[0]["about"]["chosen_on"]["linear"])


def test_a_group_by_its_key_is_not_stratified(tmp_path: Path) -> None:
    table = table_of(write_photos(tmp_path / "photos"), "csv")
    own = ["--image-column=photo", "--label-column=species", "--val=0.25"]
    config = config_of(str(table), *RUN, *own, "--set=DATA.HOLD_OUT.GROUP_COLUMN=patient")
    assert (config.DATA.HOLD_OUT.GROUP_COLUMN, config.DATA.HOLD_OUT.STRATIFIED) == (
        "patient",
        False,
    )
    stratified = config_of(str(table), *RUN, *own)
    assert stratified.DATA.HOLD_OUT.STRATIFIED
    assert [len(each) for each in datasets_of(stratified)] == [12, 4]


def test_several_classes_of_an_image_are_not_stratified(tmp_path: Path) -> None:
    """In columns of their own, in one with a separator, and in lists in a parquet of a hub's."""
    photos = write_photos(tmp_path / "photos", each=2)
    indicators, together = photos / "columns.csv", photos / "together.csv"
    indicators.write_text("path,dark,small\n" + "".join(
        f"{path},{int(name == 'dark')},1\n" for path, name, _ in rows_of(photos)))  # fmt: skip
    together.write_text("path,tags\n" + "".join(
        f"{path},{name}|small\n" for path, name, _ in rows_of(photos)))  # fmt: skip
    several = ["--label-column=dark", "--label-column=small"]
    separated = ["--label-column=tags", "--set=DATA.TRAIN.LABEL_SEPARATOR='|'"]
    cases = [(indicators, several), (together, separated)]
    with suppress(pytest.skip.Exception):
        cases.append((_of_a_hub(photos), ["--label-column=tags"]))
    for table, columns in cases:
        config = config_of(str(table), *RUN, "--val=0.25", *columns)
        assert not config.DATA.HOLD_OUT.STRATIFIED, table
        train, test = datasets_of(config)
        assert (len(train), len(test)) == (3, 1)
    (labels,) = SSLDataset(read(config_of(str(together), *RUN, *separated), DataOptions).TRAIN,
                           "TRAIN", 0).sources  # fmt: skip
    assert [*labels.class_names] == ["dark", "light", "small"]


def _of_a_hub(photos: Path) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets")
    rows = rows_of(photos)
    images = [{"bytes": (photos / path).read_bytes(), "path": path} for path, _, _ in rows]
    file = photos / "hub.parquet"
    parquet.write_table(
        arrow.table({"image": images, "tags": [[name, "small"] for _, name, _ in rows]}), file
    )
    return file


@pytest.mark.slow
def test_embed_says_which_columns_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    photos, run = write_photos(tmp_path / "photos", each=4), tmp_path / "run"
    assert main(["train", str(photos), *RUN, f"--out={run}"]) == 0
    table = table_of(photos, "csv")
    embedded = ["--image-column=photo", "--workers=0"]
    assert main(["embed", str(run), str(table), *embedded, f"--out={tmp_path}/rows.npz"]) == 0
    assert f"{table}: no labels are found in it. It has patient, photo, species." in caplog.text
    cases = {
        "--image-column=photo --label-column=specis": "has no column 'specis'. Did you mean 'species'?",
        "--image-column=phot": "has no column 'phot'. Did you mean 'photo'?",
    }
    for option, told in cases.items():
        assert (
            main(["embed", str(run), str(table), *option.split(), f"--out={tmp_path}/new.csv"]) == 2
        )
        assert told in capsys.readouterr().err
    given = [str(photos / "dark"), "--label-column=species", f"--out={tmp_path}/new.csv"]
    assert main(["embed", str(run), *given]) == 2
    assert "--label-column: it has no effect on" in capsys.readouterr().err


# ---- `sslengine judge` on tables whose columns have other names than usual.


TYPED = 2
HEADER = ["site", "species", "photo"]
COLUMNS = ["--image-column=photo", "--label-column=species"]
FEW = ["--set=EVALUATE.LABEL_FREE=[rankme]", "--set=NEAREST_NEIGHBOR.TOPK=[1,3]"]


def _table(folder: Path, kind: str, names: list[str] = HEADER) -> Path:
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
    table = write_table(tmp_path / "val.csv", HEADER, rows)

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


# ---- `sslengine judge RUN` of a run without test images: a fifth of its own is held out.


SMALL_CLASS = {"cat": 20, "dog": 4, "owl": 3}


def judged(folder: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *more: str) -> Any:
    """The config of the evaluation of a run on these images."""
    make_run(folder, **{f"DATA__TRAIN__{key}": each for key, each in data.items()}).describe()
    started: list[Resolved] = []

    def start(runs: list[Resolved], notes: list[str]) -> int:
        started.extend(runs)
        return len(notes)

    monkeypatch.setattr(judge, "start_parts", start)
    assert judge.main([str(folder), *more]) == 0
    return started[0].config


def images(root: Path, counts: dict[str, int]) -> list[Path]:
    return [write_picture(root / name / f"{number}.png", number, 16)
            for name, count in counts.items() for number in range(count)]  # fmt: skip


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(
    ("counts", "held"),
    [(SMALL_CLASS, {"cat": 4, "dog": 1, "owl": 1}), ({**SMALL_CLASS, "owl": 2}, None)],
)
def test_each_class_is_among_the_test_images(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: dict[str, int],
    held: dict[str, int] | None,
    labelled: bool,
) -> None:
    """Where the fifth of one would be none, they are drawn from all."""
    images(tmp_path / "set", counts)
    data = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path / "set")]}
    given = {"LABEL_SOURCES": ["disk_folder"], "LABEL_TYPE": "standard"} if labelled else {}
    config = judged(tmp_path / "run", {**data, **given}, monkeypatch)
    train, test = datasets_of(config)
    found = Counter(Path(test.name(number)).parent.name for number in range(len(test)))
    assert (found == held) if held else (found.total() == 5)
    assert len(train) + len(test) == sum(counts.values())


@pytest.mark.parametrize("name", ["", "cat"])
def test_without_classes_they_are_drawn_from_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images(tmp_path / "set", {name: 10})
    data = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path / "set")]}
    config = judged(tmp_path / "run", data, monkeypatch)
    assert [len(each) for each in datasets_of(config)] == [8, 2]
    assert not config.DATA.TRAIN.LABEL_SOURCES


def test_images_of_several_classes_are_drawn_from_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = images(tmp_path / "set", SMALL_CLASS)
    rows = [(str(each), str(number % 2), "1") for number, each in enumerate(files)]
    table = write_table(tmp_path / "set.csv", ("image", "wet", "old"), rows)
    data = {"DATA_SOURCES": ["csv_filelist"], "LABEL_SOURCES": ["csv_filelist"]}
    columns = {"LABEL_COLUMNS": ["wet", "old"], "DATA_PATHS": [str(table)]}
    config = judged(tmp_path / "run", {**data, **columns}, monkeypatch)
    assert [len(each) for each in datasets_of(config)] == [22, 5]


def test_groups_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = images(tmp_path / "set", SMALL_CLASS)
    rows = [(str(each), each.parent.name, each.stem) for each in files]
    table = write_table(tmp_path / "set.csv", ("image", "label", "night"), rows)
    data = {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(table)]}
    config = judged(tmp_path / "run", data, monkeypatch, "--group=night")
    train, test = ({Path(each.name(number)).stem for number in range(len(each))}
                   for each in datasets_of(config))  # fmt: skip
    assert test
    assert not train & test
