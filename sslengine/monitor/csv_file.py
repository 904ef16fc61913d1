"""metrics.csv: a line for each record, a column for each figure, for pandas and spreadsheets.

A figure that appears later becomes a new last column: the file is then written anew, and
earlier lines are empty there. A line that a full disk refused is written with the next.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sslengine.checkpoint.atomic import write_whole
from sslengine.monitor.history import flat
from sslengine.monitor.writers import Record, Writer

log = logging.getLogger("sslengine")

_FIRST = ("kind", "split", "iteration", "epoch")


class CsvWriter(Writer):
    def __init__(self, path: Path, iteration: int = 0) -> None:
        """A run that goes on from `iteration` makes the steps after it again, and their lines."""
        self.path = path
        self._columns: list[str] = list(_FIRST)
        self._waiting: list[dict[str, str]] = []
        self._failed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._write_anew([row for row in self._rows() if int(row["iteration"]) <= iteration])

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
            self._write_anew([*rows, *self._waiting])
        else:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._text(self._waiting))
        self._waiting = []

    def _write_anew(self, rows: Iterable[Mapping[str, str]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self._text([dict(zip(self._columns, self._columns, strict=True)), *rows])
        write_whole(self.path, text.encode())

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
