"""metrics.csv: a line for each record, a column for each metric, for pandas and spreadsheets.

A metric that appears later becomes a new last column: the file is then written again, and
earlier lines are empty there. A line that a full disk refused is written with the next.
"""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sslengine.atomic import make_folder, open_no_link, write_whole
from sslengine.monitor.history import flat
from sslengine.monitor.record_file import (
    Mark,
    RecordFile,
    cut,
    problem,
    put_aside,
    report_failure,
    report_gap,
)
from sslengine.monitor.writers import Record, Writer

log = logging.getLogger("sslengine")

_FIRST = ("kind", "split", "iteration", "epoch")


class CsvWriter(Writer):
    def __init__(self, path: Path, iteration: float = 0, mark: Mark | None = None) -> None:
        """A run that resumes cuts the file at the mark of its checkpoint; without one, after the
        lines of `iteration`."""
        self.path = path
        self._columns: list[str] = list(_FIRST)
        self._waiting: list[dict[str, str]] = []
        self._failed = False
        self._lines = 0  # of records, in the file
        self._file = RecordFile(path)
        make_folder(path.parent)
        self._cut_back(iteration, mark)

    def marks(self) -> dict[str, dict[str, Any]]:
        more = {"lines": self._lines, "columns": len(self._columns)}
        return {self.path.name: {**self._file.mark(), **more}}

    def unsynced(self) -> list[Path]:
        return [self.path]

    def _cut_back(self, iteration: float, mark: Mark | None) -> None:
        try:
            why = problem(self.path, mark) if mark is not None else None
            if mark is not None and why is None:
                cut(self.path, mark["bytes"], self.path.parent)
            elif mark is not None and self._cut_with_columns(mark):
                return
            elif why is not None:
                report_gap(self.path, why)
            if self.path.exists():
                fits = mark is not None and why is None
                self._keep_until(math.inf if fits else iteration)
        except OSError as error:
            report_failure(self.path, error)

    def _cut_with_columns(self, mark: Mark) -> bool:
        """A metric that first came after the checkpoint has changed every line of the file."""
        lines, width = mark.get("lines"), mark.get("columns")
        if not (self.path.exists() and isinstance(lines, int) and isinstance(width, int)):
            return False
        rows, columns = self._rows(), self._columns
        later = self._whole_text(rows[lines:])
        self._columns = columns[:width]
        kept = [{name: row.get(name, "") for name in self._columns} for row in rows[:lines]]
        if hashlib.sha256(self._whole_text(kept).encode()).hexdigest() != mark["sha256"]:
            self._columns = columns
            return False
        put_aside(self.path, later.encode(), self.path.parent)
        self._rewrite(kept)
        return True

    def _keep_until(self, iteration: float) -> None:
        now, rows = self.path.read_text(encoding="utf-8"), self._rows()
        kept = [row for row in rows if int(row["iteration"]) <= iteration]
        self._lines = len(kept)
        if self._whole_text(kept) == now:
            return
        dropped = [row for row in rows if int(row["iteration"]) > iteration]
        aside = self._whole_text(dropped) if rows else now
        put_aside(self.path, aside.encode(), self.path.parent)
        self._rewrite(kept)

    def write(self, record: Record) -> None:
        place = (record.kind, record.split, record.iteration, record.epoch)
        values = {**dict(zip(_FIRST, place, strict=True)), **dict(flat(record.values))}
        self._waiting.append({name: str(value) for name, value in values.items()})
        try:
            self._write_waiting()
        except OSError as error:  # a full disk must not end a run
            if not self._failed:
                log.error("%s: a line could not be written: %s.", self.path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def _write_waiting(self) -> None:
        new = [n for n in dict.fromkeys(n for row in self._waiting for n in row)
               if n not in self._columns]  # fmt: skip
        if new or self._failed or not self.path.exists():
            rows = self._rows() if self.path.exists() else []
            self._columns += new
            self._rewrite([*rows, *self._waiting])
        else:
            with open(self.path, "a", encoding="utf-8", newline="", opener=open_no_link) as file:
                file.write(self._text(self._waiting))
            self._lines += len(self._waiting)
        self._waiting = []

    def _rewrite(self, rows: Sequence[Mapping[str, str]]) -> None:
        write_whole(self.path, self._whole_text(rows).encode())
        self._lines = len(rows)

    def _whole_text(self, rows: Sequence[Mapping[str, str]]) -> str:
        return self._text([dict(zip(self._columns, self._columns, strict=True)), *rows])

    def _text(self, rows: Iterable[Mapping[str, Any]]) -> str:
        out = io.StringIO()
        csv.DictWriter(out, self._columns, restval="", lineterminator="\n").writerows(rows)
        return out.getvalue()

    def _rows(self) -> list[dict[str, str]]:
        """Those of the file that are whole; their columns become this writer's."""
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        header, *lines = csv.reader(io.StringIO(whole)) if whole else [[]]
        self._columns = [*header, *(n for n in self._columns if n not in header)]
        rows = [dict(zip(header, line)) for line in lines if len(line) == len(header)]
        return [row for row in rows if row.get("iteration", "").isdigit()]
