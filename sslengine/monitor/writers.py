"""Where metrics go: JSON lines, TensorBoard, image files. One small class each.

They come in a `Record`: what kind it is, when it was, and named values.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import PIL.Image

from sslengine.atomic import append, make_folder
from sslengine.dotted import leaves
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.monitor.pictures import Histogram, Image
from sslengine.screen import fit_line

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
        """Return what names begin with in a list of all of a run: `train`, `test_phase`."""
        return self.split if self.kind == "step" else f"{self.split}_{self.kind}"

    @property
    def numbers(self) -> dict[str, float]:
        """Return the values that are numbers, by names with the prefix."""
        return {
            f"{self.prefix}/{name}": value
            for name, value in leaves(self.values, "/")
            if isinstance(value, (int, float))
        }

    @property
    def place(self) -> str:
        epochs = self.display.get("epochs")
        return f"{self.split} {self.epoch + 1}{f'/{epochs}' if epochs else ''}"

    @property
    def texts(self) -> list[str]:
        """Each metric with its value, as a person reads it."""
        return [f"{name} {_number(value)}" for name, value in _short_leaves(self.values)]

    @property
    def eta(self) -> str:
        left = self.display.get("eta_seconds")
        return "" if left is None else f"eta {clock(left)}"

    def step_line(self) -> str:
        step = f"step {self.display.get('step')}/{self.display.get('steps')}"
        return "  ".join(filter(None, (self.place, step, *self.texts, self.eta)))

    def phase_line(self, width: int | None = None) -> str:
        """Write as many whole metrics as fit into one line, and how many do not."""
        return fit_line([self.place, *self.texts], width)


def _short_leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List nested values by dotted names; the only output of a model, `0`, is in no name."""
    for name, value in values.items():
        if isinstance(value, Mapping) and [*value] == ["0"]:
            yield from _short_leaves({prefix + name: value["0"]})
        elif isinstance(value, Mapping):
            yield from _short_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def clock(seconds: float) -> str:
    """Write a time as h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


class Writer(ABC):
    """Takes records. Rank 0 alone has writers.

    A run that resumes makes the steps after its checkpoint again, and their records come again.
    """

    @abstractmethod
    def write(self, record: Record) -> None: ...

    def unsynced(self) -> list[Path]:
        """Return files written to since the last call: they are synced before a checkpoint is."""
        return []

    def close(self) -> None:  # noqa: B027 - nothing to close is common
        pass


class Delivery:
    """Hand each record to each writer. One that fails, such as a tracker whose server is away, does
    not end a run of days.

    At its first record it does: nothing is lost yet, and it is the writer's code that is wrong.
    """

    def __init__(self) -> None:
        # By the id of a writer that took a record once: did it take the last one?
        self._took: dict[int, bool] = {}

    def hand_out(self, record: Record, writers: Sequence[Writer]) -> None:
        for writer in writers:
            try:
                writer.write(record._replace(values=dict(record.values)))
                self._took[id(writer)] = True
            except SSLEngineError:
                raise
            except Exception as error:
                if id(writer) not in self._took:
                    raise
                if self._took[id(writer)]:  # told once, until it works again
                    told = "failed: %s: %s. Training continues; it gets further records."
                    _report(writer, told, error)
                self._took[id(writer)] = False

    @staticmethod
    def close(writers: Sequence[Writer]) -> None:
        """Close all of them, though one fails: the others have their records on the disk."""
        for writer in writers:
            try:
                writer.close()
            except Exception as error:
                told = "could not be closed: %s: %s. Its last records may be missing."
                _report(writer, told, error)


def _report(writer: Writer, told: str, error: Exception) -> None:
    names = type(writer).__name__, type(error).__name__
    log.error(f"The writer %s {told}", *names, error, exc_info=error)


class JsonLinesWriter(Writer):
    """metrics.jsonl: one JSON object a line, written at once.

    It only grows: monitor/history.py reads the newest line of each step.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failed = False
        self._end = b"\n" if _is_torn(path) else b""  # of a line that a kill has cut short
        make_folder(path.parent)

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
            self._append(self._end + json.dumps(line).encode() + b"\n")
            self._failed, self._end = False, b""
        except OSError as error:  # a full disk must not end a run
            if not self._failed:
                log.error(
                    "%s: a line could not be written: %s. Training continues; further lines may be "
                    "missing.", self.path, error.strerror,
                )  # fmt: skip
            self._failed = True

    def _append(self, line: bytes) -> None:
        """Open the file again for each line (30 us): its folder may have been moved or removed."""
        try:
            append(self.path, line)
        except FileNotFoundError:
            make_folder(self.path.parent)
            append(self.path, line)


def _is_torn(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() != b"\n"
    return False


def _plain(value: Any) -> Any:
    """Make a string of what is not finite: JSON has no NaN."""
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
        self, folder: Path, flush_minutes: float = 5.0, iteration: int | None = None
    ) -> None:
        """iteration: from which the run continues; TensorBoard hides values of later ones."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "config.HOOKS: TensorBoard is asked for by TENSORBOARD_SETUP.USE_TENSORBOARD or "
                "WRITERS, and is not installed. pip install 'sslengine[tensorboard]'"
            ) from error
        self.folder = folder
        self._failed = False
        again = iteration is not None and any(folder.glob(_EVENTS))
        self.summary = SummaryWriter(  # type: ignore[no-untyped-call]
            str(folder),
            flush_secs=int(60 * flush_minutes),
            purge_step=iteration + 1 if again and iteration is not None else None,
        )

    def write(self, record: Record) -> None:
        self.attempt(lambda: self._write(record))

    def attempt(self, add: Callable[[], object]) -> None:
        """Call it, and do not let a full disk end the run.

        The summary's thread has ended then: values that come once there is room begin a new file.
        """
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

    def unsynced(self) -> list[Path]:
        self.attempt(self.summary.flush)
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


class ImageWriter(Writer):
    """`<run>/images/<name>/<iteration>.png`; of test phases, `images/test/<name>`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._failed = False
        self._unsynced: list[Path] = []

    def write(self, record: Record) -> None:
        within = self.folder if record.split == "train" else self.folder / record.split
        for name, image in record.images.items():
            path = within / name / f"{record.iteration}.png"
            try:
                make_folder(path.parent)
                PIL.Image.fromarray(image).save(path)
                self._unsynced.append(path)
                self._failed = False
            except OSError as error:  # a full disk must not end a run
                if not self._failed:
                    log.error("%s could not be written: %s. Training continues.", path, error)
                self._failed = True

    def unsynced(self) -> list[Path]:
        written, self._unsynced = self._unsynced, []
        return written
