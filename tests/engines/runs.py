"""Engines on small configs, in this process or on ranks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sslengine.config.resolve import Resolved
from sslengine.engines.run import Run
from sslengine.hooks.events import Hook
from sslengine.registry import HOOKS, register_hook
from tests.config.recipes import resolved


def make_run(folder: Path, engine: str = "train", **changes: Any) -> Run:
    decided = resolved(**changes)
    decided = Resolved(**{**decided.__dict__, "engine_name": engine})
    console = Console(file=io.StringIO(), width=200, soft_wrap=True, highlight=False)
    return Run(decided, folder, torch.device("cpu"), console)


def screen(run: Run) -> str:
    out = run.console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


class PowerCut(Exception):
    pass


if "test_power_cut" not in HOOKS:

    @register_hook("test_power_cut")
    class CutPower(Hook):
        """Ends the run after some train steps, without a word to anyone."""

        def __init__(self, after: int) -> None:
            self.after = after

        def on_step(self, task: Any) -> None:
            if task.train and task.iteration == self.after:
                raise PowerCut
