"""What `sslengine judge` computes on: as the run, or else what this machine has."""

from __future__ import annotations

import argparse
import os

from omegaconf import DictConfig

from sslengine.command.machine import Machine, look
from sslengine.config.compose import overrides, typed

DEVICE, RANKS, NODES = "MACHINE.DEVICE", "DISTRIBUTED.NUM_PROC_PER_NODE", "DISTRIBUTED.NUM_NODES"
WORKERS = "DATA.NUM_DATALOADER_WORKERS"


def of_machine(given: argparse.Namespace, config: DictConfig) -> tuple[list[str], str]:
    """Keys of the config, and a note unless they were asked for. config: the run's."""
    workers = {} if given.workers is None else {WORKERS: given.workers}
    asked = given.device != "auto" or given.gpus is not None
    if not asked and (_is_placed(config) or _is_said(given) or _runs_anywhere(config)):
        return overrides(workers), ""
    found = look(given.device, given.gpus)
    if not asked and _has(found, config):
        return overrides(workers), ""
    values = {DEVICE: found.device, RANKS: found.ranks, NODES: 1}
    if asked:
        return overrides({**values, **workers}), ""
    note = (
        f"computed on {found}: the run has {DEVICE}={config.MACHINE.DEVICE} and "
        f"{RANKS}={config.DISTRIBUTED.NUM_PROC_PER_NODE}"
    )
    return overrides({**values, WORKERS: found.workers, **workers}), note


def _is_placed(config: DictConfig) -> bool:
    """By SLURM, or by torchrun, whose process this is."""
    return bool(config.SLURM.USE_SLURM) or "RANK" in os.environ


def _is_said(given: argparse.Namespace) -> bool:
    keys = (f"config.{each}=" for each in (DEVICE, RANKS, NODES))
    return any(each.startswith(tuple(keys)) for each in typed(given.values))


def _runs_anywhere(config: DictConfig) -> bool:
    wanted, ranks = config.MACHINE.DEVICE, config.DISTRIBUTED.NUM_PROC_PER_NODE
    return bool(wanted == "cpu" or (wanted == "auto" and ranks == 1))


def _has(machine: Machine, config: DictConfig) -> bool:
    """As many GPUs as the run has processes; or an Apple computer's."""
    if config.MACHINE.DEVICE == "mps":
        return machine.apple
    return bool(machine.gpus >= config.DISTRIBUTED.NUM_PROC_PER_NODE)
