from __future__ import annotations

import builtins
import io
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from sslengine.errors import ConfigError
from sslengine.monitor.pictures import Histogram
from sslengine.monitor.writers import JsonLinesWriter, Record, TensorBoardWriter


def _record(iteration: int, **values: Any) -> Record:
    return Record("step", iteration, 0, "train", values or {"loss": 1.0}, {"step": 1})


def _iterations(path: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


def test_a_line_holds_the_values_and_is_there_at_once(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path / "new" / "metrics.jsonl")
    writer.write(_record(3, loss=1.5, acc={"top_1": {"0": 50.0}}))
    line = json.loads((tmp_path / "new" / "metrics.jsonl").read_text())
    assert -1 < time.time() - line.pop("time") < 3600
    assert line == {
        "kind": "step",
        "split": "train",
        "iteration": 3,
        "epoch": 0,
        "loss": 1.5,
        "acc": {"top_1": {"0": 50.0}},
    }
    writer.close()


def test_a_disk_that_cannot_be_written_is_told_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    writer.write(_record(1))
    with monkeypatch.context() as full:

        def write(*_: object) -> int:
            raise OSError(28, "No space left on device")

        full.setattr(os, "write", write)
        writer.write(_record(2))
        writer.write(_record(3))
    writer.write(_record(4))
    assert _iterations(tmp_path / "metrics.jsonl") == [1, 4]
    assert caplog.text.count("metrics.jsonl: a line could not be written: No space left") == 1


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.write(_record(1))
    shutil.rmtree(path.parent)
    writer.write(_record(2))
    assert _iterations(path) == [2]


def test_a_disk_that_takes_half_a_line_keeps_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    writer.write(_record(1))
    with monkeypatch.context() as full:
        original = os.write

        def write(file: int, rest: bytes) -> int:
            if not rest.startswith(b"{"):
                raise OSError(28, "No space left on device")
            return original(file, rest[:9])

        full.setattr(os, "write", write)
        writer.write(_record(2))
    writer.write(_record(3))
    assert _iterations(tmp_path / "metrics.jsonl") == [1, 3]


def test_what_is_not_finite_is_still_json(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    writer.write(_record(0, loss=math.nan, other=math.inf))
    writer.close()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (line["loss"], line["other"]) == ("nan", "inf")


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLinesWriter(path)
    for iteration in (1, 2, 3, 4):
        first.write(_record(iteration))
    first.close()
    with path.open("a") as file:
        file.write('{"kind": "step", "itera')  # killed while it wrote
    second = JsonLinesWriter(path, iteration=2)
    for iteration in (3, 4, 5):
        second.write(_record(iteration))
    second.close()
    assert _iterations(path) == [1, 2, 3, 4, 5]


def test_tensorboard_has_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    writer.write(_record(7, loss=2.5, name="not a number"))
    writer.write(Record("phase", 9, 0, "test", {"acc": {"top_1": {"0": 50.0}}}))
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    assert scalars == {"train/loss": [(7, 2.5)], "test_phase/acc/top_1/0": [(9, 50.0)]}


def test_tensorboard_has_images_and_histograms(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    histogram = Histogram([1, 0, 3], 0.0, 3.0, 7.5, 20.25)
    writer = TensorBoardWriter(tmp_path)
    writer.write(
        Record("step", 4, 0, "train", {}, {}, {"view": image}, {"weights": histogram}),
    )
    writer.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0, "images": 0})
    events.Reload()
    (shown,) = events.Images("train/view")
    pixels = np.asarray(PIL.Image.open(io.BytesIO(shown.encoded_image_string)))
    assert (shown.step, pixels[..., 0].tolist()) == (4, image.tolist())
    (counted,) = events.Histograms("train/weights")
    value = counted.histogram_value
    assert (counted.step, value.num, value.sum, value.sum_squares) == (4, 4.0, 7.5, 20.25)
    counts = dict(zip(value.bucket_limit, value.bucket, strict=True))
    assert {limit: n for limit, n in counts.items() if n} == {1.0: 1.0, 3.0: 3.0}


def test_json_lines_have_no_pictures(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    image = np.zeros((2, 2), np.uint8)
    writer.write(Record("step", 1, 0, "train", {"loss": 1.0}, images={"view": image}))
    assert json.loads((tmp_path / "metrics.jsonl").read_text()).keys() == {
        "kind", "split", "iteration", "epoch", "time", "loss",
    }  # fmt: skip


def test_tensorboard_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'sslengine\[tensorboard\]'"):
        TensorBoardWriter(tmp_path)


def test_the_file_is_cut_at_the_mark_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    for iteration in (1, 2):
        writer.write(_record(iteration))
    saved, marks = path.read_bytes(), writer.marks()
    writer.write(Record("phase", 2, 0, "test", {"loss": 3.0}))  # then it was killed
    JsonLinesWriter(path, 2, marks["metrics.jsonl"])
    assert path.read_bytes() == saved


def test_tensorboards_files_are_cut_at_their_marks(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "tb_logs"
    first = TensorBoardWriter(folder)
    first.write(_record(1, loss=1.0))
    marks = first.marks()
    first.write(Record("phase", 1, 0, "test", {"loss": 9.0}))
    first.close()  # killed, after both were written
    later = TensorBoardWriter(folder)  # a second life, before any checkpoint of its own
    later.write(_record(2, loss=9.0))
    later.close()
    last = TensorBoardWriter(folder, marks=marks)
    last.write(_record(2, loss=2.0))
    last.close()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    # Files are read in the order of their names, in which the tenth of a process precedes its ninth.
    found = sorted((e.step, e.value) for e in events.Scalars("train/loss"))
    assert found == [(1, 1.0), (2, 2.0)]
    assert list((tmp_path / "superseded" / "tb_logs").iterdir())
