"""Tables with columns of their own names, several labels, and groups that are left out as a whole."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sslengine
from sslengine.command.columns import run_keys
from sslengine.command.front import main
from sslengine.command.train import choose, make_parser
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.launch.cli import resolve_all
from tests.command.photos import SMALL, write_photos, write_table

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


@pytest.mark.slow
def test_a_run_of_all_images_is_judged_by_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = table_of(write_photos(tmp_path / "photos"), "csv"), tmp_path / "run"
    assert main(["train", str(table), *RUN, "--image-column=photo", "--out", str(out)]) == 0
    asked = ["judge", str(out), "--label-column=species"]
    assert main([*asked, "--group=patient", "--set=DATA.HOLD_OUT.SHARE=0.25"]) == 0
    assert chosen_on(out) == "4 of 12 training images in whole groups"
    capsys.readouterr()
    assert main([*asked, f"--train={table}", f"--val={table}", "--group=doctor"]) == 2
    assert "LINEAR_PROBE.GROUP_COLUMN" in capsys.readouterr().err
    assert main(["judge", "--features", str(table), "--group=patient"]) == 2
    assert "--workers: they belong to a run" in capsys.readouterr().err


def config_of(*arguments: str) -> Any:
    chosen, _ = choose(make_parser().parse_args(arguments))
    (run,) = resolve_all(chosen, [], True)
    return run.config


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


def test_a_list_of_paths(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", each=2)
    content = io.StringIO()
    for path, _, _ in rows_of(photos):
        content.write(f"{path}\r\n\n")
    (photos / "l.txt").write_text(content.getvalue())
    config = config_of(str(photos / "l.txt"), *RUN)
    assert (config.DATA.TRAIN.DATA_SOURCES, config.DATA.TRAIN.LABEL_SOURCES) == (
        ["csv_filelist"],
        [],
    )
    (dataset, _) = datasets_of(config_of(str(photos / "l.txt"), *RUN, "--val=0.25"))
    assert dataset.name(0).startswith(str(photos / "dark"))


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
