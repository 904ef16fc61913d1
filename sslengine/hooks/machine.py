"""Measure what a run takes of the machine: memory, and the size of the model.

`PROFILING.MEMORY_PROFILING` writes `<run>/profile/rank<N>_memory.pickle`: all that a GPU allocates
in one step, for https://pytorch.org/memory_viz. It is also a separate hook:

    HOOKS: {EXTRA: [{name: layer_memory, iteration: 3}]}     # ranks: [0]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from sslengine.distributed.ranks import rank
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.profile import profile_folder
from sslengine.monitor.environment import peak_memory
from sslengine.registry import register_hook

log = logging.getLogger("sslengine")


class LogGpus(Hook):
    """`HOOKS.LOG_GPU_STATS`: name and memory of this rank's GPU."""

    def on_start(self, task: Task) -> None:
        if task.device.type == "cuda":
            free, total = (each / 2**30 for each in torch.cuda.mem_get_info(task.device))
            name = torch.cuda.get_device_name(task.device)
            log.info("%s: %s, %.1f of %.1f GiB free", task.device, name, free, total)


class LogGpuMemory(Hook):
    """`HOOKS.MEMORY_SUMMARY`: the allocator's own summary, after one step."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_step(self, task: Task) -> None:
        if task.device.type == "cuda" and task.train and task.iteration == self.iteration + 1:
            log.info("%s", torch.cuda.memory_summary(task.device))


class LogMemoryPeaks(Hook):
    """`HOOKS.MEMORY_SUMMARY.LOG_PEAKS`: the peak memory so far, in GB, with each log line.

        rss_gb              host memory of this process, without its loader workers
        gpu_allocated_gb    GPU memory of tensors, as torch counts it
        gpu_reserved_gb     GPU memory that torch has reserved

    Each is the largest over ranks. It does not synchronise with the device.
    """

    def __init__(self, frequency: int) -> None:
        self.frequency = frequency

    def on_step(self, task: Task) -> None:
        first_or_due = task.progress.step == 1 or task.iteration % self.frequency == 0
        if task.train and first_or_due:
            for name, value in peak_memory(task.device).items():
                task.storage.put_scalar(name, round(value, 3), window=1, reduce="max", keep=False)


class LogComplexity(Hook):
    """`HOOKS.MODEL_COMPLEXITY`: parameters, flops and activations for one image, by fvcore."""

    def __init__(self, input_shape: Sequence[int]) -> None:
        self.input_shape = tuple(input_shape)

    def on_start(self, task: Task) -> None:
        from fvcore.nn import (  # type: ignore[attr-defined] # slow to import, rarely used
            ActivationCountAnalysis,
            FlopCountAnalysis,
        )

        model = task.base_model
        parameters = sum(p.numel() for p in model.parameters())
        was_training = model.training
        image = torch.zeros(1, *self.input_shape, device=task.device)
        model.eval()
        counts = []
        with torch.no_grad():
            for analysis in (FlopCountAnalysis, ActivationCountAnalysis):
                count = analysis(model, image)
                count.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
                counts.append(count.total())
        model.train(was_training)
        log.info(
            "%.2f M parameters; one image of %s takes %.3f GFLOP and %.2f M activations",
            parameters / 1e6, "x".join(map(str, self.input_shape)), counts[0] / 1e9,
            counts[1] / 1e6,
        )  # fmt: skip


@register_hook("layer_memory")
class WriteMemorySnapshot(Hook):
    """`MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY`: record every allocation on the GPU in one step.

    The file shows, by its line of code, what each layer takes and keeps for backward.

    iteration: train steps before the one that is recorded.
    ranks: which of them write.
    folder: where to; by default in the run's folder.
    """

    def __init__(self, iteration: int = 0, ranks: Sequence[int] = (0,), folder: str = "") -> None:
        self.iteration, self.folder = iteration, folder
        self._mine, self._records = rank() in ranks, False

    def on_start(self, task: Task) -> None:
        if self._mine and task.device.type != "cuda":
            log.warning(
                "config.PROFILING.MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY has no effect: torch "
                "records the memory of a GPU alone, and this run is on a %s.", task.device.type,
            )  # fmt: skip
        self._mine = self._mine and task.device.type == "cuda"

    def on_step_start(self, task: Task) -> None:
        if self._mine and task.train and task.iteration == self.iteration:
            torch.cuda.memory._record_memory_history(stacks="python", device=task.device)
            self._records = True

    def on_step(self, task: Task) -> None:
        if self._records:
            folder = profile_folder(task.run_dir, self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(folder / f"rank{rank()}_memory.pickle"))
            self._stop()

    def on_exception(self, task: Task) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._records:
            torch.cuda.memory._record_memory_history(enabled=None)
            self._records = False
