"""Where metrics go: JSON lines, image files, TensorBoard. One small class each.

    @register_writer("my_tracker")
    class MyTracker(Writer):
        def __init__(self, run: RunPlace, project: str = "ssl") -> None: ...
        def write(self, record: Record) -> None: ...

`config.HOOKS.WRITERS` names them. `run` is the engine's; further arguments stand in YAML:
`{name: my_tracker, project: x}`. A writer that was registered with an options dataclass gets one
object of it instead.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import PIL.Image
from rich.console import Console

from sslengine.atomic import append, make_folder
from sslengine.dotted import leaves
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.monitor.store import Histogram, Image
from sslengine.registry import WRITERS, register_writer
from sslengine.screen import fit_line

log = logging.getLogger("sslengine")

METRICS = "metrics.jsonl"


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


class RunPlace(NamedTuple):
    """What a writer may need to know of the run."""

    folder: Path
    iteration: int  # from which it continues: records of later steps come again
    console: Console | None = None
    # Are later steps made again? Not in a run that only tests.
    trains: bool = True
    # As it is stored: without secrets and environment.
    config: Mapping[str, Any] | None = None


class Writer(ABC):
    """Takes records. Rank 0 alone has writers.

    A run that resumes makes the steps after its checkpoint again, and their records come again.
    """

    # Has it taken the last record? None: it was given none yet.
    _took: bool | None = None
    package = ""  # of a tracker: what reports of failures call it

    @abstractmethod
    def write(self, record: Record) -> None: ...

    def unsynced(self) -> list[Path]:
        """Return files written to since the last call: they are synced before a checkpoint is."""
        return []

    def close(self) -> None:  # noqa: B027 - nothing to close is common
        pass

    def attempt(self, call: Callable[[], object]) -> bool:
        """Call it. A failure ends no run of days: the first of several in a row is reported.

        A full disk, a server that is away: the other writers have the record. But an error of
        another kind at the first record is raised: nothing is lost yet, and the writer's code is
        wrong.
        """
        try:
            call()
        except SSLEngineError:
            raise
        except Exception as error:
            of_outside = isinstance(error, OSError)
            if self._took is None and not of_outside:
                raise
            if self._took is not False:
                log.error(
                    "The writer %s failed: %s: %s. Training continues; it gets further records.",
                    self.package or type(self).__name__, type(error).__name__, error,
                    exc_info=None if of_outside else error,
                )  # fmt: skip
            self._took = False
            return False
        self._took = True
        return True


def hand_out(record: Record, writers: Iterable[Writer]) -> None:
    for writer in writers:
        writer.attempt(partial(writer.write, record._replace(values=dict(record.values))))


def close_all(writers: Iterable[Writer]) -> None:
    """Close all of them, though one fails: the others have their records on the disk."""
    for writer in writers:
        try:
            writer.close()
        except Exception as error:
            log.error(
                "The writer %s could not be closed: %s: %s. Its last records may be missing.",
                writer.package or type(writer).__name__, type(error).__name__, error,
                exc_info=error,
            )  # fmt: skip


def build_writers(entries: Iterable[str | Mapping[str, Any]], run: RunPlace) -> list[Writer]:
    return [build_writer({"name": e} if isinstance(e, str) else e, run) for e in entries]


def build_writer(entry: Mapping[str, Any], run: RunPlace) -> Writer:
    arguments = {str(key): value for key, value in entry.items() if key != "name"}
    made: Writer = WRITERS.make(str(entry["name"]), arguments, "config.HOOKS.WRITERS", run)
    return made


@register_writer("json")
class JsonLinesWriter(Writer):
    """Append to metrics.jsonl a JSON object a line, written at once.

    It only grows: monitor/history.py reads the newest line of each step.
    """

    def __init__(self, run: RunPlace) -> None:
        self.path = run.folder / METRICS
        self._end = b"\n" if _is_torn(self.path) else b""  # of a line that a kill has cut short
        make_folder(run.folder)

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
        make_folder(self.path.parent)  # it may have been moved or removed
        append(self.path, self._end + json.dumps(line).encode() + b"\n")
        self._end = b""


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


@register_writer("images")
class ImageWriter(Writer):
    """Write `<run>/images/<name>/<iteration>.png`; of test phases, `images/test/<name>`."""

    def __init__(self, run: RunPlace) -> None:
        self.folder = run.folder / "images"
        self._unsynced: list[Path] = []

    def write(self, record: Record) -> None:
        within = self.folder if record.split == "train" else self.folder / record.split
        for name, image in record.images.items():
            path = within / name / f"{record.iteration}.png"
            make_folder(path.parent)
            PIL.Image.fromarray(image).save(path)
            self._unsynced.append(path)

    def unsynced(self) -> list[Path]:
        written, self._unsynced = self._unsynced, []
        return written


_EVENTS = "events.out.tfevents.*"
# Bytes that are free before a new file is begun where one could not be written.
_ROOM = 2**20


@register_writer("tensorboard")
class TensorBoardWriter(Writer):
    """Write scalars, images and histograms under `<split>/<name>`, by iteration.

    TensorBoard hides the values of steps that a resumed run makes again.
    """

    def __init__(self, run: RunPlace, flush_minutes: float = 5.0) -> None:
        """flush_minutes: how often the file is written."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "config.HOOKS: TensorBoard is asked for by TENSORBOARD_SETUP.USE_TENSORBOARD or "
                "WRITERS, and is not installed. pip install 'sslengine[tensorboard]'"
            ) from error
        self.folder = run.folder / "tb_logs"
        again = run.trains and any(self.folder.glob(_EVENTS))
        self.summary: Any = SummaryWriter(  # type: ignore[no-untyped-call]
            str(self.folder),
            flush_secs=int(60 * flush_minutes),
            purge_step=run.iteration + 1 if again else None,
        )

    def attempt(self, call: Callable[[], object]) -> bool:
        """Call it. Where the disk is full, its thread ends: once there is room, a file is begun."""
        if self._took is False and shutil.disk_usage(self.folder).free < _ROOM:
            return False
        done = super().attempt(call)
        if not done:
            with suppress(OSError):
                self.summary.close()
            self.summary.file_writer = self.summary.all_writers = None
        return done

    def write(self, record: Record) -> None:
        prefix, at = record.prefix, record.iteration
        for name, value in record.numbers.items():
            self.summary.add_scalar(name, value, at)
        for name, image in record.images.items():
            form = "HW" if image.ndim == 2 else "HWC"
            self.summary.add_image(f"{prefix}/{name}", image, at, dataformats=form)
        for name, each in record.histograms.items():
            self.summary.add_histogram_raw(
                f"{prefix}/{name}", each.low, each.high, sum(each.counts), each.sum,
                each.sum_of_squares, each.edges[1:], each.counts, at,
            )  # fmt: skip

    def unsynced(self) -> list[Path]:
        self.attempt(self.summary.flush)
        return list(self.folder.glob(_EVENTS))

    def close(self) -> None:
        self.attempt(self.summary.close)
