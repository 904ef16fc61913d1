"""The argument of an engine: the resolved config, the run's folder, the device."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from sslengine.atomic import write_whole
from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.config.show import show
from sslengine.config.users_code import users_code
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.dotted import no_such_metric
from sslengine.errors import UnexpectedResultError
from sslengine.monitor.console import Screen
from sslengine.monitor.history import flat
from sslengine.monitor.run_record import environment
from sslengine.signing import write_signed

log = logging.getLogger("sslengine")


@dataclass
class Run:
    resolved: Resolved
    run_dir: Path
    device: torch.device
    # Only rank 0 prints to the screen.
    console: Console = field(default_factory=lambda: Screen(quiet=not is_primary()))

    @property
    def config(self) -> DictConfig:
        return self.resolved.config

    def say(self, text: str) -> None:
        """Print to the screen and to the log."""
        self.console.print(text)
        log.info("%s", text, extra={"on_screen": False})

    def describe(self) -> dict[str, Any]:
        """Write the config, the machine and the code version: config.yaml and environment.json.

        Other engines than `train` add their name to these files, to keep those of the training.
        Returns the machine and the code version; {} on other ranks than 0.
        """
        found: dict[str, Any] = {}
        if is_primary():
            engine = self.resolved.engine_name
            suffix = "" if engine == "train" else f"_{engine}"
            code = [Path(sys.modules[name].__file__ or "") for name in users_code(self.config)]
            write_signed(self.run_dir / f"config{suffix}.yaml", show(self.resolved).encode(), code)
            found = environment()
            report = json.dumps(found, indent=2) + "\n"
            # Private: it holds environment variables.
            path = self.run_dir / f"environment{suffix}.json"
            write_whole(path, report.encode(), private=True)
        return found


# ---- config.EXPECTED_RESULTS, at the end, when everything is saved


def check_results(run: Run, results: Mapping[str, Any]) -> None:
    """Compare rank 0's results, by split as in metrics.jsonl, with what is expected. Collective.

    A metric outside its tolerance, a missing one or NaN makes the command fail.
    """
    if read(run.config, RunOptions).EXPECTED_RESULTS:
        _raise(broadcast_object(_problems(run, results) if is_primary() else []))


def check_results_here(run: Run, results: Mapping[str, Any]) -> None:
    """Check on this rank alone, after the others have ended."""
    _raise(_problems(run, results))


def _problems(run: Run, results: Mapping[str, Any]) -> list[str]:
    metrics, problems = dict(flat(results)), []
    for name, value, tolerance in read(run.config, RunOptions).EXPECTED_RESULTS or ():
        problem, got = "", metrics.get(name, "missing")
        if name not in metrics:
            problem = no_such_metric(name, metrics)
        elif not (isinstance(got, (int, float)) and abs(got - value) <= tolerance):  # nor is NaN
            problem = f"{name} is {got}, expected {value} +- {tolerance}."
        verdict = "NOT as expected" if problem else "as expected"
        run.console.print(f"  {verdict}  {name}: {got}, expected {value} +- {tolerance}")
        problems += [problem] if problem else []
    return problems


def _raise(problems: list[str]) -> None:
    if problems:
        raise UnexpectedResultError(
            "config.EXPECTED_RESULTS: the run is complete and saved, but\n  "
            + "\n  ".join(problems)
        )
