"""The command as a user starts it, on a small config in a folder of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from sslengine.checkpoint import files
from tests.config.recipes import recipe

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "tools" / "run_distributed_engines.py"), "config=tiny"]


def write_config(folder: Path, **changes: Any) -> None:
    """`config=tiny` for a command that is started in the folder."""
    (folder / "configs").mkdir()
    text = "# @package _global_\n" + yaml.safe_dump({"config": recipe(**changes)})
    (folder / "configs" / "tiny.yaml").write_text(text)


def same_weights(one: Path, two: Path) -> bool:
    """Do the newest checkpoints of two runs hold the same model, bit by bit?"""
    ours, theirs = _weights(one), _weights(two)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    model = files.newest(folder / "checkpoints")[1]["classy_state_dict"]["base_model"]["model"]
    return {**model["trunk"], **model["heads"]}
