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
        if not path.exists():
            raise ConfigError(f"{path} is not there: it is not the folder of a run.")
        runs = [path] if is_run(path) else sweep_of(path)
        found += runs
        if not runs:
            notes.append(f"passed over: {path} is not the folder of a run")
    if not found:
        raise ConfigError(
            f"{', '.join(map(str, paths[:5]))}: it is not the folder of a run, which has a "
            f"config.yaml. `sslengine train` makes one."
        )
    return list(dict.fromkeys(found)), notes


def sweep_of(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder in their order; [] if it is none."""
    found = [each for each in folder.glob(SWEPT) if is_run(each)]
    return sorted(found, key=lambda each: (len(each.name), each.name))
