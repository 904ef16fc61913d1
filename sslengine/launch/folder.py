"""Where a run lives."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.options import DistributedOptions
from sslengine.config.sections import read
from sslengine.errors import ConfigError


def run_folder(config: DictConfig) -> Path:
    options = read(config, CheckpointOptions)
    folder = Path(options.DIR).expanduser()
    if not options.APPEND_DISTR_RUN_ID:
        return folder
    run_id = read(config, DistributedOptions).RUN_ID
    if run_id == "auto":
        raise ConfigError(
            "config.CHECKPOINT.APPEND_DISTR_RUN_ID needs a config.DISTRIBUTED.RUN_ID of your own: "
            "with `auto` a restarted run would not find its folder again."
        )
    return folder / run_id.replace("/", "_").replace(":", "_")
