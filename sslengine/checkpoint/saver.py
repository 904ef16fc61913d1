"""Save in the background: the step waits for a copy in host memory, a thread writes it.

    save(...)   waits for the previous save, copies the state, starts writing
    finish()    waits; raises the error of the last save

A save that fails is retried, then reported; training continues with the existing checkpoints.
One save runs at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sslengine.atomic import sync_files
from sslengine.checkpoint import files, sharded
from sslengine.checkpoint.manifest import Manifest
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.retention import keep_best, remove_surplus, saved, unknown_metric
from sslengine.checkpoint.snapshot import copy_to_host
from sslengine.distributed.ranks import is_primary
from sslengine.distributed.shard_files import Peers
from sslengine.errors import CheckpointError

log = logging.getLogger("sslengine")

WAITS = (1.0, 5.0)  # seconds before a save is tried again


class Saver:
    """Save into one folder; used by rank 0 alone, or by all ranks of a sharded run in step."""

    def __init__(self, folder: Path, options: CheckpointOptions) -> None:
        self.folder, self.options = folder, options
        self.peers: Peers | None = None  # of a sharded run; set by engine/checkpointing.py
        self.error: CheckpointError | None = None  # of the last save
        self._thread: threading.Thread | None = None
        self._newest: Manifest | None = None
        self._next_number = 0
        self._warned = False  # that there is no such metric

    def save(
        self,
        state: Mapping[str, Any],
        name: str,
        facts: Mapping[str, Any],
        last: bool = False,
        records: Sequence[Path] = (),
    ) -> None:
        """Copy the state and write it in the background. records: files that are synced first."""
        began = time.perf_counter()
        self.wait()
        if self._next_number == 0:  # read once: from here on only this object adds files
            self._next_number = 1 + max((each.number for each in saved(self.folder)), default=0)
        facts = {**facts, "number": self._next_number}
        if self._newest is not None and self._newest.file == name:  # the same place in the run
            facts["results"] = self._newest.results | facts["results"]
        self._next_number += 1
        save = copy_to_host(state), self.folder, name, facts
        write = partial(sharded.write, peers=self.peers) if self.peers else files.write
        held_up = time.perf_counter() - began
        work = (partial(write, *save), held_up, last, records)
        self._thread = threading.Thread(target=self._write, args=work, name="checkpoint")
        self._thread.start()

    def add_results(self, results: Mapping[str, Any]) -> None:
        """Add a test phase's metrics to the manifest of the newest checkpoint."""
        self.wait()
        if self._newest is None:
            return
        self._newest.results.update(results)
        try:
            self._newest.write(self.folder)
            self._tidy()
        except OSError as error:
            log.error("the results could not be written to %s: %s", self.folder, error)

    def wait(self) -> None:
        """Wait until no save is running."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        self.wait()
        if self.error is not None:
            raise self.error

    def _write(
        self, write: Callable[[], Manifest], held_up: float, last: bool, records: Sequence[Path]
    ) -> None:
        began = time.perf_counter()
        try:
            sync_files(records)
        except OSError as error:
            log.warning("%s may be lost in a power cut: %s", error.filename, error.strerror)
        written = self._try(write)
        if written is None or not is_primary():
            return
        self._newest = written
        log.info(
            "saved %s: %.1f MB, written in %.2f s in the background; training waited %.3f s",
            written.file, written.bytes / 1e6, time.perf_counter() - began, held_up,
        )  # fmt: skip
        if last and self.peers is not None and self.options.WHOLE_AT_END:
            self._export_one_file(written.file)
        try:
            self._tidy()
        except OSError as error:
            log.error("older checkpoints could not be removed from %s: %s", self.folder, error)

    def _try(self, write: Callable[[], Manifest]) -> Manifest | None:
        for pause in (*WAITS, None):
            try:
                written = write()
            except CheckpointError as error:
                self.error = error
                log.error("%s%s", error, "" if pause is None else " Trying again.")
                time.sleep(pause or 0.0)
            else:
                self.error = None
                return written
        return None

    def _export_one_file(self, name: str) -> None:
        try:
            path = sharded.export_one_file(self.folder, name)
        except (OSError, RuntimeError, CheckpointError) as error:
            self.error = CheckpointError(
                f"the weights of {name} could not be written to one file: {error}"
            )
            log.error("%s", self.error)
        else:
            log.info("all weights in one file: %s", path)

    def _tidy(self) -> None:
        """Remove older checkpoints: only after the newest is on the disk."""
        metric = self.options.BEST.metric
        if metric and self._newest is not None:
            problem = unknown_metric(self._newest.results, metric)
            if problem is not None and not self._warned:
                log.warning("%s", problem)
                self._warned = True
        keep_best(self.folder, self.options.BEST)
        remove_surplus(self.folder, self.options)
