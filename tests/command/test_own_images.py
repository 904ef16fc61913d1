"""`sslengine judge RUN` of a run without test images: a fifth of its own is held out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sslengine.command import judge
from sslengine.config.resolve import Resolved
from tests.command.photos import write_table
from tests.command.test_columns import datasets_of
from tests.data.pictures import write_picture
from tests.engines.runs import make_run

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
