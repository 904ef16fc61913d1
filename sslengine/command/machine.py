"""What this machine has, and what a run on it takes if nothing else is said."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from sslengine.errors import LaunchError

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    gpus: int
    memory: int  # of the smallest GPU, in bytes
    cores: int
    name: str

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{self.gpus} x {self.name}, {cores}" if self.gpus else f"CPU, {cores}"

    @property
    def ranks(self) -> int:
        return max(1, self.gpus)

    @property
    def model(self) -> str:
        return "resnet50" if self.gpus else "resnet18"

    @property
    def workers(self) -> int:
        """Of each rank; where the model is computed on the CPU it keeps a core."""
        if self.gpus:
            return max(1, min(12, self.cores // self.gpus))
        return max(0, min(8, self.cores - 1))

    def batch(self, images: int, many_views: bool) -> int:
        """By the memory: 128 images of 16 GiB, a half with many views of each; 32 on a CPU. A
        power of two, of which an epoch has two at least."""
        most = 32
        if self.gpus:
            most = min(512, max(32, 8 * (self.memory // GIB)))
        most //= 2 if many_views else 1
        most = min(most, max(2, images // (2 * self.ranks)))
        return int(2 ** (most.bit_length() - 1))


def look(device: str = "auto", gpus: int | None = None) -> Machine:
    """device: auto, gpu or cpu. gpus: how many are wanted; None: all."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "gpu" and not there:
        raise LaunchError("--device gpu: torch finds no GPU on this machine.")
    if gpus is not None and not 0 <= gpus <= there:
        raise LaunchError(f"--gpus {gpus}: this machine has {there}.")
    used = 0 if device == "cpu" else there if gpus is None else gpus
    properties = [torch.cuda.get_device_properties(number) for number in range(used)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = min((each.total_memory for each in properties), default=0)
    return Machine(used, memory, cores or 1, properties[0].name if properties else "")
