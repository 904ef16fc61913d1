"""The argument of an engine: the resolved config, the run's folder, the device."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from sslengine.atomic import write_whole
from sslengine.config.resolve import Resolved
from sslengine.config.show import show
from sslengine.distributed.ranks import is_primary
from sslengine.monitor.console import Screen
from sslengine.monitor.environment import environment

log = logging.getLogger("sslengine")


def make_console() -> Console:
    """Only rank 0 prints to the screen."""
    return Screen(quiet=not is_primary())


@dataclass
class Run:
    resolved: Resolved
    run_dir: Path
    device: torch.device
    console: Console = field(default_factory=make_console)

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
            write_whole(self.run_dir / f"config{suffix}.yaml", show(self.resolved).encode())
            found = environment()
            report = json.dumps(found, indent=2) + "\n"
            # Private: it holds environment variables.
            path = self.run_dir / f"environment{suffix}.json"
            write_whole(path, report.encode(), private=True)
        return found
