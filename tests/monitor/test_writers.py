from __future__ import annotations

import io
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import ConfigError
from sslengine.hooks.default import default_hooks
from sslengine.monitor.history import read
from sslengine.monitor.store import Histogram
from sslengine.monitor.writers import (
    ImageWriter,
    JsonLinesWriter,
    Record,
    RunPlace,
    TensorBoardWriter,
    Writer,
    build_writers,
    hand_out,
)
from sslengine.registry import WRITERS, register_writer
from tests.config.recipes import resolved
from tests.engine.runs import CPU, same, train, weights


def _record(iteration: int, **values: Any) -> Record:
    return Record("step", iteration, 0, "train", values or {"loss": 1.0}, {"step": 1})


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    return RunPlace(tmp_path / "run", 0)


def _events(place: RunPlace) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {"histograms": 0, "images": 0}
    events = EventAccumulator(str(place.folder / "tb_logs"), size_guidance=found)
    events.Reload()
    return events


# ---- metrics.jsonl


def test_a_line_holds_the_values_and_is_there_at_once(place: RunPlace) -> None:
    image = np.zeros((2, 2), np.uint8)
    values = {"loss": 1.5, "acc": {"top_1": {"0": 50.0}}, "nan": math.nan, "inf": math.inf}
    JsonLinesWriter(place).write(Record("step", 3, 0, "train", values, images={"view": image}))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (place.folder / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=refuse)
    assert -1 < time.time() - line.pop("time") < 3600
    assert line == {
        "kind": "step", "split": "train", "iteration": 3, "epoch": 0,
        "loss": 1.5, "acc": {"top_1": {"0": 50.0}}, "nan": "nan", "inf": "inf",
    }  # fmt: skip


@pytest.mark.parametrize("taken", [0, 9])
def test_a_full_disk_is_told_once_and_keeps_no_part_of_a_line(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, taken: int
) -> None:
    writer = JsonLinesWriter(place)
    hand_out(_record(1), [writer])
    with monkeypatch.context() as full:
        original = os.write

        def write(file: int, rest: bytes) -> int:
            if not (taken and rest.startswith(b"{")):
                raise OSError(28, "No space left on device")
            return original(file, rest[:taken])

        full.setattr(os, "write", write)
        hand_out(_record(2), [writer])
        hand_out(_record(3), [writer])
    hand_out(_record(4), [writer])
    assert [row["iteration"] for row in read(place.folder)] == [1, 4]
    assert caplog.text.count("JsonLinesWriter failed: OSError: [Errno 28] No space left") == 1


def test_a_resumed_run_appends_and_is_read_with_each_step_once(place: RunPlace) -> None:
    path, first = place.folder / "metrics.jsonl", JsonLinesWriter(place)
    for iteration in (1, 2, 3, 4):
        first.write(_record(iteration))
    with path.open("a") as file:
        file.write('{"kind": "step", "itera')  # killed while it wrote
    before = path.read_bytes()
    second = JsonLinesWriter(place)
    for iteration in (3, 4, 5):
        second.write(_record(iteration))
    assert path.read_bytes().startswith(before)
    assert [row["iteration"] for row in read(place.folder)] == [1, 2, 3, 4, 5]


# ---- TensorBoard


def test_tensorboard_has_scalars_images_and_histograms(place: RunPlace) -> None:
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    histogram = Histogram([1, 0, 3], 0.0, 3.0, 7.5, 20.25)
    writer = TensorBoardWriter(place)
    values = {"loss": 2.5, "name": "not a number"}
    writer.write(Record("step", 4, 0, "train", values, {}, {"view": image}, {"weights": histogram}))
    writer.write(Record("phase", 9, 0, "test", {"acc": {"top_1": {"0": 50.0}}}))
    writer.close()
    events = _events(place)
    scalars = {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    assert scalars == {"train/loss": [(4, 2.5)], "test_phase/acc/top_1/0": [(9, 50.0)]}
    (shown,) = events.Images("train/view")
    pixels = np.asarray(PIL.Image.open(io.BytesIO(shown.encoded_image_string)))
    assert (shown.step, pixels[..., 0].tolist()) == (4, image.tolist())
    (counted,) = events.Histograms("train/weights")
    value = counted.histogram_value
    assert (counted.step, value.min, value.max, value.num) == (4, 0.0, 3.0, 4.0)
    assert (value.sum, value.sum_squares) == (7.5, 20.25)
    counts = dict(zip(value.bucket_limit, value.bucket, strict=True))
    assert {limit: n for limit, n in counts.items() if n} == {1.0: 1.0, 3.0: 3.0}


def test_tensorboard_hides_what_comes_again(place: RunPlace) -> None:
    for iteration, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        writer = TensorBoardWriter(place._replace(iteration=iteration))
        for step in steps:
            writer.write(_record(step, loss=float(10 * iteration + step)))
        writer.close()
    found = [(e.step, e.value) for e in _events(place).Scalars("train/loss")]
    assert found == [(1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0)]


# ---- images as files


GREY = np.arange(6, dtype=np.uint8).reshape(2, 3)


def _picture(iteration: int, split: str = "train") -> Record:
    return Record("step", iteration, 0, split, {}, images={"views/first": GREY})


def test_each_image_is_a_file(place: RunPlace) -> None:
    writer = ImageWriter(place)
    writer.write(_record(1))
    assert not place.folder.exists()
    writer.write(_picture(4))
    writer.write(_picture(4, "test"))
    for path in ("views/first/4.png", "test/views/first/4.png"):
        shown = PIL.Image.open(place.folder / "images" / path)
        assert np.array_equal(np.asarray(shown), GREY)
    assert len(writer.unsynced()) == 2
    assert writer.unsynced() == []


# ---- records as text


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


# ---- writers by name


class Tracker(Writer):
    def __init__(self, run: RunPlace, project: str = "ssl") -> None:
        self.folder, self.project = run.folder, project

    def write(self, record: Record) -> None:
        pass


@dataclass
class TrackerOptions:
    project: str = "ssl"
    every: int = 1

    def check(self) -> Iterator[str]:
        if self.every < 1:
            yield f"every: expected 1 or more, got {self.every}."


if "test_tracker" not in WRITERS:

    @register_writer("test_tracker", options=TrackerOptions)
    def tracker(run: RunPlace, options: TrackerOptions) -> Writer:
        return Tracker(run, f"{options.project} {options.every}")


DOTTED = "tests.monitor.test_writers:Tracker"


def test_writers_by_name_and_with_arguments(place: RunPlace) -> None:
    entries = [
        "console", "log", "json", "csv", "images", {"name": "tensorboard", "flush_minutes": 1.0},
        DOTTED, {"name": DOTTED, "project": "x"}, {"name": "test_tracker", "every": 3},
    ]  # fmt: skip
    writers = build_writers(entries, place)
    assert [type(each).__name__ for each in writers] == [
        "ConsoleWriter", "LogWriter", "JsonLinesWriter", "CsvWriter", "ImageWriter",
        "TensorBoardWriter", "Tracker", "Tracker", "Tracker",
    ]  # fmt: skip
    assert [each.project for each in writers if isinstance(each, Tracker)] == ["ssl", "x", "ssl 3"]
    for each in writers:
        each.close()


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("jsn", "1"),
        ({"name": "csv", "path": "x"}, "1.path"),
        ({"name": DOTTED, "run": "x"}, "1.run"),
        ({"name": "test_tracker", "evry": 1}, "1.evry"),
        ({"name": "test_tracker", "every": 0}, "1.every"),
        ({"name": "test_tracker", "every": "x"}, "1.every"),
    ],
)
def test_mistakes_are_told_before_anything_starts(entry: object, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"HOOKS\.WRITERS\.{key}:"):
        resolved(HOOKS__WRITERS=["console", entry])


# ---- a writer that fails in the middle of a run


STEPS = [1, 2, 3, 4, 5, 6, 7, 8]


class Away(Writer):
    """Its server is away at some steps."""

    def __init__(self, away: Sequence[int] = (), error: type[Exception] = ConnectionError) -> None:
        self.away, self.error = away, error
        self.steps: list[int] = []
        self.closed = False

    def write(self, record: Record) -> None:
        if record.iteration in self.away:
            raise self.error("the server is away")
        if record.kind == "step":
            self.steps.append(record.iteration)

    def close(self) -> None:
        self.closed = True
        if self.away:
            raise self.error("the server is away")


def _run(folder: Path, *writers: Writer) -> SelfSupervisionTask:
    config = resolved(LOG_FREQUENCY=1).config
    hooks = default_hooks(config, folder)
    task = SelfSupervisionTask(config, folder, CPU, writers=list(writers), hooks=hooks)
    task.prepare()
    loop.run(task)
    return task


def test_it_ends_no_run_and_keeps_no_record_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, other, late = Away([3, 4, 6]), Away(), Away([1])
    with caplog.at_level(logging.ERROR, "sslengine"):
        task = _run(tmp_path / "run", first, other, late)
    assert same(weights(task), weights(train(tmp_path / "elsewhere", [])))
    assert (first.steps, other.steps, late.steps) == ([1, 2, 5, 7, 8], STEPS, STEPS[1:])
    said = "The writer Away failed: ConnectionError: the server is away. Training continues"
    assert caplog.text.count(said) == 3  # at 3 and at 6, of the other at 1
    assert "The writer Away could not be closed: ConnectionError" in caplog.text
    assert other.closed


def test_an_error_of_its_code_at_its_first_record_ends_the_run(tmp_path: Path) -> None:
    other = Away()
    with pytest.raises(KeyError):
        _run(tmp_path, Away([1], KeyError), other)
    assert other.closed
