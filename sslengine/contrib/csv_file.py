"""Write metrics.csv: metrics.jsonl as a table, a column for each metric, for spreadsheets.

    HOOKS: {WRITERS: [console, log, json, csv]}

It is made again of the whole metrics.jsonl at the end of each phase and of the run, so it has what
a resumed run had before, each step once. Nested metrics are columns such as `meter.top_1.0`.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from sslengine.atomic import write_whole
from sslengine.errors import ConfigError
from sslengine.monitor.history import columns, read
from sslengine.monitor.writers import METRICS, Record, RunPlace, Writer
from sslengine.registry import register_writer

log = logging.getLogger("sslengine")


@register_writer("csv")
class CsvWriter(Writer):
    def __init__(self, run: RunPlace) -> None:
        self.folder, self.path = run.folder, run.folder / "metrics.csv"
        if run.config is not None and "json" not in list(_names(run.config["HOOKS"]["WRITERS"])):
            raise ConfigError("config.HOOKS.WRITERS: csv is made of metrics.jsonl: add json.")

    def write(self, record: Record) -> None:
        if record.kind != "step":
            self._write_all()

    def close(self) -> None:
        self._write_all()

    def _write_all(self) -> None:
        if not (self.folder / METRICS).is_file():
            return  # nothing could be written
        rows = read(self.folder, kind=None)
        text = io.StringIO()
        table = csv.DictWriter(text, [*columns(rows)], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        try:
            write_whole(self.path, text.getvalue().encode())
        except OSError as error:  # a full disk must not end a run
            log.error("%s could not be written: %s.", self.path, error.strerror)


def _names(entries: Sequence[Any]) -> Iterator[str]:
    yield from (each if isinstance(each, str) else each["name"] for each in entries)
