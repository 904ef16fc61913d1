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

from sslengine import screen
from sslengine.errors import ConfigError
from sslengine.monitor.history import read
from sslengine.monitor.pictures import Histogram
from sslengine.monitor.writers import (
    ImageWriter,
    JsonLinesWriter,
    Record,
    TensorBoardWriter,
    clock,
)


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


def test_a_resumed_run_appends_and_is_read_with_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLinesWriter(path)
    for iteration in (1, 2, 3, 4):
        first.write(_record(iteration))
    first.close()
    with path.open("a") as file:
        file.write('{"kind": "step", "itera')  # killed while it wrote
    before = path.read_bytes()
    second = JsonLinesWriter(path)
    for iteration in (3, 4, 5):
        second.write(_record(iteration))
    second.close()
    assert path.read_bytes().startswith(before)
    assert [row["iteration"] for row in read(tmp_path)] == [1, 2, 3, 4, 5]


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


def test_tensorboard_hides_what_comes_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for iteration, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        writer = TensorBoardWriter(tmp_path, iteration=iteration)
        for step in steps:
            writer.write(_record(step, loss=float(10 * iteration + step)))
        writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert found == [(1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0)]


# ---- images as files


GREY = np.arange(6, dtype=np.uint8).reshape(2, 3)


def _picture(iteration: int, split: str = "train") -> Record:
    return Record("step", iteration, 0, split, {}, images={"views/first": GREY})


def test_each_image_is_a_file(tmp_path: Path) -> None:
    writer = ImageWriter(tmp_path / "images")
    writer.write(_picture(4))
    writer.write(_picture(4, "test"))
    for path in ("views/first/4.png", "test/views/first/4.png"):
        assert np.array_equal(np.asarray(PIL.Image.open(tmp_path / "images" / path)), GREY)
    assert len(writer.unsynced()) == 2
    assert writer.unsynced() == []


def test_a_record_without_images_makes_no_folder(tmp_path: Path) -> None:
    ImageWriter(tmp_path / "images").write(_record(1))
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "images").write_text("a file where the folder should be")
    writer = ImageWriter(tmp_path / "images")
    for iteration in (1, 2):
        writer.write(_picture(iteration))
    assert caplog.text.count("could not be written") == 1


# ---- records as text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00:00"), (61.4, "0:01:01"), (86400 + 59.6, "24:01:00")]
)
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_a_pace_lets_the_first_through_and_then_one_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 104.9, 105.0, 106.0])
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(times))
    pace = screen.Pace(seconds=5.0)
    assert [pace.is_due() for _ in range(4)] == [True, False, True, False]


def test_a_step_says_where_what_and_how_long() -> None:
    record = Record(
        "step", 12, 0, "train", {"loss": 4.56789, "lr": 0.03, "images_per_s": 1234.56},
        {"step": 12, "steps": 78, "epochs": 10, "eta_seconds": 75},
    )  # fmt: skip
    assert record.step_line() == (
        "train 1/10  step 12/78  loss 4.568  lr 0.03  images_per_s 1235  eta 0:01:15"
    )


def test_a_phase_names_each_figure_and_the_only_output_by_no_number() -> None:
    values = {
        "loss": 1.5,
        "accuracy": {"top_1": {"0": 87.654}, "top_5": {"res4": 90.0, "res5": 95.0}},
    }
    record = Record("phase", 78, 1, "test", values, {"epochs": 10})
    assert record.phase_line() == (
        "test 2/10  loss 1.5  accuracy.top_1 87.65  accuracy.top_5.res4 90  accuracy.top_5.res5 95"
    )
