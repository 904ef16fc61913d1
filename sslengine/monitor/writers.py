"""Where metrics go: JSON lines, the console, TensorBoard. One small class each.

They come in a `Record`: what kind it is, when it was, and named values.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sslengine.atomic import append, make_folder
from sslengine.dotted import leaves
from sslengine.errors import ConfigError
from sslengine.monitor.pictures import Histogram, Image
from sslengine.monitor.record_file import (
    Mark,
    RecordFile,
    cut,
    cut_back,
    mark_of,
    move_aside,
    problem,
    report_gap,
)

log = logging.getLogger("sslengine")


class Record(NamedTuple):
    """kind: `step` (at LOG_FREQUENCY), or `phase` (at its end).

    Only if something was put there: `end` of the run, `exception`.
    """

    kind: str
    iteration: int
    epoch: int
    split: str  # train or test
    values: dict[str, Any]
    # Progress for a person: not stored.
    display: Mapping[str, Any] = MappingProxyType({})
    # By name, for writers that can take them.
    images: Mapping[str, Image] = MappingProxyType({})
    histograms: Mapping[str, Histogram] = MappingProxyType({})

    @property
    def prefix(self) -> str:
        """What names begin with where a run has one list of them: `train`, `test_phase`."""
        return self.split if self.kind == "step" else f"{self.split}_{self.kind}"

    @property
    def numbers(self) -> dict[str, float]:
        """The values that are numbers, by names with the prefix."""
        return {
            f"{self.prefix}/{name}": value
            for name, value in leaves(self.values, "/")
            if isinstance(value, (int, float))
        }


class Writer(ABC):
    """Takes records. Rank 0 alone has writers."""

    @abstractmethod
    def write(self, record: Record) -> None: ...

    def marks(self) -> dict[str, dict[str, Any]]:
        """Of each file that only grows, by its name in the run's folder: where it is now.

        A checkpoint holds them, and `RunPlace.marks` gives them to the writer of a run that
        resumes, which cuts its files there.
        """
        return {}

    def unsynced(self) -> list[Path]:
        """Files written to since the last call: they are on the disk before a checkpoint is."""
        return []

    def close(self) -> None:  # noqa: B027 - nothing to close is common
        pass


class JsonLinesWriter(Writer):
    """metrics.jsonl: one JSON object a line, written at once."""

    def __init__(self, path: Path, iteration: float = 0, mark: Mark | None = None) -> None:
        """A run that resumes cuts the file at the mark of its checkpoint; without one, after the
        lines of `iteration`."""
        self.path = path
        self._failed = False
        self._file = RecordFile(path)
        make_folder(path.parent)
        cut_back(path, mark, lambda line: _iteration(line) <= iteration)

    def marks(self) -> dict[str, dict[str, Any]]:
        return {self.path.name: self._file.mark()}

    def unsynced(self) -> list[Path]:
        return [self.path]

    def write(self, record: Record) -> None:
        line = {
            "kind": record.kind,
            "split": record.split,
            "iteration": record.iteration,
            "epoch": record.epoch,
            "time": round(time.time(), 1),
            **{key: _plain(value) for key, value in record.values.items()},
        }
        try:
            self._append(json.dumps(line).encode() + b"\n")
            self._failed = False
        except OSError as error:  # a full disk must not end a run
            if not self._failed:
                log.error(
                    "%s: a line could not be written: %s. Training continues; further lines may be "
                    "missing.", self.path, error.strerror,
                )  # fmt: skip
            self._failed = True

    def _append(self, line: bytes) -> None:
        """Opened again for each line (30 us): the folder may have been moved or removed."""
        try:
            append(self.path, line)
        except FileNotFoundError:
            make_folder(self.path.parent)
            append(self.path, line)


def _iteration(line: bytes) -> float:
    """Of a line of metrics.jsonl; what is no such line belongs to none."""
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _plain(value: Any) -> Any:
    """JSON has no NaN: what is not finite is written as a string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


_EVENTS = "events.out.tfevents.*"
# Bytes that are free before a new file is begun where one could not be written.
_ROOM = 2**20


class TensorBoardWriter(Writer):
    """Scalars, images and histograms under `<split>/<name>`, by iteration."""

    def __init__(
        self, folder: Path, flush_minutes: float = 5.0, marks: Mapping[str, Any] | None = None
    ) -> None:
        """marks: of the checkpoint that the run resumes from."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "config.HOOKS: TensorBoard is asked for by TENSORBOARD_SETUP.USE_TENSORBOARD or "
                "WRITERS, and is not installed. pip install 'sslengine[tensorboard]'"
            ) from error
        self.folder = folder
        self._failed = False
        self._files: dict[str, RecordFile] = {}
        if marks is not None and folder.name in marks:
            self._cut_back(marks)
        self.summary = SummaryWriter(str(folder), flush_secs=int(60 * flush_minutes))  # type: ignore[no-untyped-call]

    def write(self, record: Record) -> None:
        self.attempt(lambda: self._write(record))

    def attempt(self, add: Callable[[], object]) -> None:
        """A full disk must not end a run. The summary's thread has ended then: values that come
        once there is room begin a new file."""
        try:
            if self._failed and shutil.disk_usage(self.folder).free < _ROOM:
                return
            add()
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.error(
                    "%s: values could not be written: %s. Training continues; further values may "
                    "be missing.", self.folder, error,
                )  # fmt: skip
            self._failed = True
            with suppress(OSError):
                self.summary.close()  # type: ignore[no-untyped-call]
            self.summary.file_writer = self.summary.all_writers = None

    def _write(self, record: Record) -> None:
        prefix = record.prefix
        for name, value in record.numbers.items():
            self.summary.add_scalar(name, value, record.iteration)  # type: ignore[no-untyped-call]
        for name, image in record.images.items():
            form = "HW" if image.ndim == 2 else "HWC"
            self.summary.add_image(f"{prefix}/{name}", image, record.iteration, dataformats=form)  # type: ignore[no-untyped-call]
        for name, histogram in record.histograms.items():
            self._add_histogram(f"{prefix}/{name}", histogram, record.iteration)

    def _cut_back(self, marks: Mapping[str, Any]) -> None:
        """Each start of a run writes a new file: those of later starts are moved aside."""
        run_folder = self.folder.parent
        for path in sorted(self.folder.glob(_EVENTS)):
            mark = mark_of(marks, f"{self.folder.name}/{path.name}")
            if mark is None:
                move_aside(path, run_folder)
                continue
            why = problem(path, mark)
            if why is None:
                cut(path, mark["bytes"], run_folder)
            else:
                report_gap(path, why)

    def marks(self) -> dict[str, dict[str, Any]]:
        self.attempt(self.summary.flush)
        found: dict[str, dict[str, Any]] = {self.folder.name: {}}
        for path in sorted(self.folder.glob(_EVENTS)):
            file = self._files.setdefault(path.name, RecordFile(path))
            found[f"{self.folder.name}/{path.name}"] = file.mark()
        return found

    def unsynced(self) -> list[Path]:
        return list(self.folder.glob(_EVENTS))

    def _add_histogram(self, tag: str, histogram: Histogram, iteration: int) -> None:
        self.summary.add_histogram_raw(  # type: ignore[no-untyped-call]
            tag,
            min=histogram.low,
            max=histogram.high,
            num=sum(histogram.counts),
            sum=histogram.sum,
            sum_squares=histogram.sum_of_squares,
            bucket_limits=histogram.edges[1:],
            bucket_counts=histogram.counts,
            global_step=iteration,
        )

    def close(self) -> None:
        self.attempt(self.summary.close)
