"""The runs that a command names: those of sweeps, too; what is no run is passed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sslengine.errors import ConfigError
from sslengine.monitor.run_facts import is_run

SWEPT = "sweep_*"


def runs_in(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the folders of runs, and a note on each path that is none."""
    found: list[Path] = []
    notes: list[str] = []
    for path in paths:
        runs = [path] if is_run(path) else sweep_of(path)
        found += runs
        if not runs:
            what = "is not there" if not path.exists() else "is not the folder of a run"
            notes.append(f"passed over: {path} {what}")
    if not found:
        raise ConfigError(
            f"none of these is the folder of a run: {', '.join(map(str, paths[:5]))}. A run's "
            f"folder has a config.yaml: start one with `sslengine train`."
        )
    return list(dict.fromkeys(found)), notes


def sweep_of(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder in their order; [] if it is none."""
    found = [each for each in folder.glob(SWEPT) if is_run(each)]
    return sorted(found, key=lambda each: (len(each.name), each.name))
