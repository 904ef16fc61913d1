"""Look at this machine: what a run on it takes if nothing else is said, and what judging takes."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from sslengine.command.arguments import expect_known
from sslengine.config.compose import overrides, typed
from sslengine.config.options import DEVICES
from sslengine.distributed.ranks import gpu_count, has_mps
from sslengine.errors import ConfigError
from sslengine.precision import best

GIB = 2**30
DEVICE, RANKS, NODES = "MACHINE.DEVICE", "DISTRIBUTED.NUM_PROC_PER_NODE", "DISTRIBUTED.NUM_NODES"
WORKERS = "DATA.NUM_DATALOADER_WORKERS"


@dataclass(frozen=True)
class Machine:
    gpus: int  # of CUDA
    memory: int  # of the smallest GPU, in bytes
    cores: int
    name: str  # of the GPUs
    apple: bool = False  # does it compute on Apple's GPU?

    def __str__(self) -> str:
        return f"{self.hardware(self.device, self.ranks)}, {_counted(self.cores, 'core')}"

    def hardware(self, device: str, ranks: int) -> str:
        if device == "cpu":
            return "CPU" if ranks == 1 else f"CPU, {ranks} processes"
        if device == "mps":
            return "Apple's GPU (mps)"
        return f"{ranks} x {self.name or 'GPU'}"

    def told(self, device: str, ranks: int, precision: str, workers: int, batch: int) -> str:
        """Say what a run computes with. device, precision: as the config has them."""
        device = self.device if device == "auto" else device
        if precision == "auto":
            precision = best(torch.device({"gpu": "cuda"}.get(device, device)))
        each = " each" if ranks > 1 else ""
        return (
            f"{self.hardware(device, ranks)}, {precision}, batch {batch}{each}, "
            f"{_counted(workers, 'loader worker')}{each} ({_counted(self.cores, 'core')})"
        )

    @property
    def device(self) -> str:
        """The value of MACHINE.DEVICE."""
        return "gpu" if self.gpus else "mps" if self.apple else "cpu"

    @property
    def ranks(self) -> int:
        return max(1, self.gpus)

    @property
    def model(self) -> str:
        return "resnet18" if self.device == "cpu" else "resnet50"

    @property
    def workers(self) -> int:
        """Return those of each rank. A core stays with the process that computes on the CPU, or
        feeds a GPU whose memory is the machine's."""
        if self.gpus:
            return max(1, min(12, self.cores // self.gpus))
        return max(0, min(8, self.cores - 1))

    def batch(self, images: int, many_views: bool) -> int:
        """Choose by the memory: 128 images of 16 GiB, a half with many views of each; 32 on a CPU.
        A power of two, of which an epoch has two at least."""
        most = 32
        if self.device != "cpu":
            most = min(512, max(32, 8 * (self.memory // GIB)))
        most //= 2 if many_views else 1
        most = min(most, max(2, images // (2 * self.ranks)))
        return int(2 ** (most.bit_length() - 1))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def look(device: str = "auto", gpus: int | None = None) -> Machine:
    """device: auto, gpu, mps or cpu. gpus: how many are wanted; None: all."""
    expect_known(device, DEVICES, "--device: there is no")  # of Python: the parser has checked it
    there = gpu_count()
    if device == "gpu" and not there:
        hint = " --device mps takes Apple's." if has_mps() else ""
        raise ConfigError(f"--device gpu: torch finds no GPU of CUDA on this machine.{hint}")
    if device == "mps" and not has_mps():
        raise ConfigError("--device mps: torch finds no GPU of Apple's on this machine.")
    if gpus is not None and device == "mps" and gpus != 1:
        raise ConfigError(f"--gpus {gpus}: with --device mps there is one, for one process.")
    if gpus is not None and device != "mps" and not 0 <= gpus <= there:
        raise ConfigError(f"--gpus {gpus}: this machine has {there}.")
    used = 0 if device in ("cpu", "mps") else there if gpus is None else gpus
    properties = [torch.cuda.get_device_properties(number) for number in range(used)]
    apple = not used and has_mps() and (device == "mps" or (device == "auto" and gpus is None))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = min((each.total_memory for each in properties), default=0)
    if apple:
        memory = torch.mps.recommended_max_memory()
    return Machine(used, memory, cores or 1, properties[0].name if properties else "", apple)


# ---- judging


def judging_keys(given: argparse.Namespace, config: DictConfig) -> tuple[list[str], str]:
    """Return what `judge` computes on: as the run, or else what this machine has.

    The keys of the config, and a note unless they were asked for. config: the run's.
    """
    workers = {} if given.workers is None else {WORKERS: given.workers}
    keys = tuple(f"config.{each}=" for each in (DEVICE, RANKS, NODES))
    device, ranks = config.MACHINE.DEVICE, config.DISTRIBUTED.NUM_PROC_PER_NODE
    asked = given.device != "auto" or given.gpus is not None
    # SLURM or torchrun places it; --set says where; or it runs anywhere.
    is_placed = config.SLURM.USE_SLURM or "RANK" in os.environ
    is_said = any(each.startswith(keys) for each in typed(given.values))
    runs_anywhere = device == "cpu" or (device == "auto" and ranks == 1)
    if not asked and (is_placed or is_said or runs_anywhere):
        return overrides(workers), ""
    found = look(given.device, given.gpus)
    values = {DEVICE: found.device, RANKS: found.ranks, NODES: 1}
    if asked:
        return overrides({**values, **workers}), ""
    if found.apple if device == "mps" else found.gpus >= ranks:
        return overrides(workers), ""
    note = f"computed on {found}: the run has {DEVICE}={device} and {RANKS}={ranks}"
    return overrides({**values, WORKERS: found.workers, **workers}), note
