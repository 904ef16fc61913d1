"""Transforms and sources that tell what runs them, or end it."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np
import torch
from PIL import Image

from sslengine.data.sources.base import DataSource

HEAVY = (
    "hydra",
    "classy_vision",
    "timm",
    "sklearn",
    "pytest",
    "sslengine.task",
    "sslengine.models",
    "sslengine.methods",
    "sslengine.trainer",
)


LEFT_TO_MAIN = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


class ProcessProbe:
    """Adds to the sample: the process, its threads, its signals, and what it has imported."""

    def __call__(self, image: Any) -> dict[str, Any]:
        return {
            "data": image,
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "ignored": sum(signal.getsignal(each) == signal.SIG_IGN for each in LEFT_TO_MAIN),
            "waits_for_sigterm": int(
                signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            ),
            "heavy": sum(name in sys.modules for name in HEAVY),
            "frozen": gc.get_freeze_count(),
            "marker": int("imported_by_the_script" in sys.modules),
        }


class DrawProbe:
    """Replaces the image by what the three global streams give."""

    def __call__(self, image: Any) -> torch.Tensor:
        drawn = [random.random(), np.random.rand(), float(torch.rand(1, dtype=torch.float64))]  # noqa: NPY002
        return torch.tensor(drawn, dtype=torch.float64)


class Failing:
    def __call__(self, image: Any) -> Any:
        raise ArithmeticError("no such luck")


class Dying:
    """Ends its process as the kernel does when memory is short."""

    def __call__(self, image: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging:
    """As a file system that does not answer."""

    def __call__(self, image: Any) -> Any:
        time.sleep(600)


class DeadlySource(DataSource):
    """One of its images ends the process that reads it, as a broken decoder may."""

    def __len__(self) -> int:
        return 22

    def path(self, index: int) -> str:
        return f"/data/{index}.jpg"

    def image(self, index: int) -> Image.Image:
        if index == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return Image.new("RGB", (8, 8))
