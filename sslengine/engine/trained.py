"""The model of a run that was trained before: its weights out of the run's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import verify
from sslengine.errors import CheckpointError, ConfigError
from sslengine.models.trunks.base import Trunk
from sslengine.models.weights.state import choose, load_model_state


def newest_state(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The newest checkpoint of a run's folder, and the state of the task in it."""
    found = files.newest(folder / "checkpoints")
    if found is None:
        raise CheckpointError(
            f"{folder / 'checkpoints'} holds no checkpoint: train first with the same "
            f"config.CHECKPOINT.DIR."
        )
    return found[0], _task_state(*found)


def state_of(checkpoint: Path) -> Mapping[str, Any]:
    """Return a checkpoint's state, after comparing it with its manifest."""
    verify(checkpoint)
    return _task_state(checkpoint, files.read(checkpoint))


def _task_state(path: Path, state: Mapping[str, Any]) -> Mapping[str, Any]:
    if "classy_state_dict" not in state:
        raise CheckpointError(f"{path} has no `classy_state_dict`: no training run saved it.")
    found: Mapping[str, Any] = state["classy_state_dict"]
    return found


def load_network(model: nn.Module, state: Mapping[str, Any], network: str, path: Path) -> str:
    """Load the student, the teacher, or (auto) the one that is judged; returns which it is."""
    chosen, name = choose(state, network, str(path))
    load_model_state(model, chosen["base_model"])
    return name


def trunk_of(model: nn.Module) -> Trunk:
    trunk = getattr(model, "trunk", None)
    if not isinstance(trunk, Trunk):
        raise ConfigError(
            f"config.MODEL.BASE_MODEL_NAME: {type(model).__name__} has no `trunk` "
            f"(sslengine.models.trunks.base.Trunk), whose features are what is asked for."
        )
    return trunk
