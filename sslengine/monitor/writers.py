"""Where figures go: JSON lines, the console, TensorBoard. One small class each.

A figure comes in a `Record`: what kind it is, when it was, and named values.
"""

from __future__ import annotations

import json
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sslengine.checkpoint.atomic import write_whole
from sslengine.errors import ConfigError
from sslengine.monitor.history import leaves
from sslengine.monitor.pictures import Histogram, Image

log = logging.getLogger("sslengine")


class Record(NamedTuple):
    """kind: `step` (at LOG_FREQUENCY), or `phase` (at its end)."""

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


class Writer(ABC):
    """Takes records. Rank 0 alone has writers."""

    @abstractmethod
    def write(self, record: Record) -> None: ...

    def close(self) -> None:  # noqa: B027 - nothing to close is common
        pass


class JsonLinesWriter(Writer):
    """metrics.jsonl: one JSON object a line, flushed at once.

    A run that goes on from iteration N makes the steps after N again, and their lines.
    """

    def __init__(self, path: Path, iteration: int = 0) -> None:
        self.path = path
        self._failed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_lines_until(path, iteration)

    def write(self, record: Record) -> None:
        line = {
            "kind": record.kind,
            "split": record.split,
            "iteration": record.iteration,
            "epoch": record.epoch,
            **{key: _plain(value) for key, value in record.values.items()},
        }
        try:
            self._append(json.dumps(line).encode() + b"\n")
            self._failed = False
        except OSError as error:  # a full disk must not end a run
            if not self._failed:
                log.error(
                    "%s: a line could not be written: %s. Training goes on; further lines may be "
                    "missing.", self.path, error.strerror,
                )  # fmt: skip
            self._failed = True

    def _append(self, line: bytes) -> None:
        """Opened anew for each line (30 us): the folder may have been moved or removed."""
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def _keep_lines_until(path: Path, iteration: int) -> None:
    """Drop the lines of steps that will be made again, and a line that was cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["iteration"] <= iteration and line.endswith("\n"):
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    write_whole(path, "".join(kept).encode())


def _plain(value: Any) -> Any:
    """JSON has no NaN: what is not finite is written as a string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


class TensorBoardWriter(Writer):
    """Scalars, images and histograms under `<split>/<name>`, by iteration."""

    def __init__(self, folder: Path, flush_minutes: float = 5.0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "config.HOOKS: TensorBoard is asked for by TENSORBOARD_SETUP.USE_TENSORBOARD or "
                "WRITERS, and is not installed. pip install 'sslengine[tensorboard]'"
            ) from error
        self.summary = SummaryWriter(str(folder), flush_secs=int(60 * flush_minutes))  # type: ignore[no-untyped-call]

    def write(self, record: Record) -> None:
        prefix = record.split if record.kind == "step" else f"{record.split}_phase"
        for name, value in leaves(record.values, "/"):
            if isinstance(value, (int, float)):
                self.summary.add_scalar(f"{prefix}/{name}", value, record.iteration)  # type: ignore[no-untyped-call]
        for name, image in record.images.items():
            form = "HW" if image.ndim == 2 else "HWC"
            self.summary.add_image(f"{prefix}/{name}", image, record.iteration, dataformats=form)  # type: ignore[no-untyped-call]
        for name, histogram in record.histograms.items():
            self._add_histogram(f"{prefix}/{name}", histogram, record.iteration)

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
        self.summary.close()  # type: ignore[no-untyped-call]
