"""Hooks that look into a run: what a model costs, what it allocates, what gets no gradient.

A GPU's allocations in one step go to `<run>/profile/rank0_memory.pickle`, for
https://pytorch.org/memory_viz; PROFILING asks for them, or the hook by its name:

    HOOKS: {EXTRA: [{name: layer_memory, iteration: 3}]}     # ranks: [0]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from sslengine.distributed.ranks import rank
from sslengine.distributed.sharding import whole
from sslengine.errors import listing
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.profile import profile_folder
from sslengine.monitor.writers import TensorBoardWriter
from sslengine.registry import register_hook

log = logging.getLogger("sslengine")


@register_hook("model_complexity")
class LogComplexity(Hook):
    """`HOOKS.MODEL_COMPLEXITY`: parameters, flops and activations for one image, by fvcore.

    input_shape: channels, height and width of the image.
    """

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
            self._mine = False
            log.warning(
                "config.PROFILING.MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY has no effect: torch "
                "records the memory of a GPU alone, and this run is on a %s.", task.device.type,
            )  # fmt: skip

    def on_step_start(self, task: Task) -> None:
        if self._mine and task.train and task.iteration == self.iteration:
            torch.cuda.memory._record_memory_history(stacks="python", device=task.device)
            self._records = True

    def on_step(self, task: Task) -> None:
        if self._records:
            folder = profile_folder(task.run_dir, self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(folder / f"rank{rank()}_memory.pickle"))
            self.on_exception(task)

    def on_exception(self, task: Task) -> None:
        if self._records:
            torch.cuda.memory._record_memory_history(enabled=None)
            self._records = False


@register_hook("unreached_parameters")
class ReportUnreachedParameters(Hook):
    """`DISTRIBUTED.DETECT_ANOMALOUS_PARAMS`: every rank names parameters without gradient, once.

    DDP waits for the gradient of every parameter, and its error does not name the missing ones.
    It costs a call for each parameter in each step.
    """

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._reported: set[str] = set()
        self._handles: list[Any] = []

    def on_start(self, task: Task) -> None:
        for name, parameter in task.learner.named_parameters():
            if parameter.requires_grad:
                arrived = partial(self._note, name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(arrived))

    def on_backward(self, task: Task) -> None:
        if not task.updating:
            return
        names = {name for name, each in task.learner.named_parameters() if each.requires_grad}
        missing = names - self._reached
        if missing - self._reported:
            log.warning(
                "step %d: %d parameters get no gradient from the loss: %s.\n  Freeze or remove "
                "them, or let DDP look for them in each step: "
                "config.DISTRIBUTED.FIND_UNUSED_PARAMETERS=true.",
                task.iteration, len(missing), listing(sorted(missing), 50),
            )  # fmt: skip
            self._reported |= missing
        self._reached.clear()

    def on_end(self, task: Task) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    on_exception = on_end

    def _note(self, name: str, parameter: nn.Parameter) -> None:
        self._reached.add(name)


@register_hook("tensorboard_histograms")
class TensorBoardHistograms(Hook):
    """Write histograms of parameters and gradients every so many steps.

    Each time they are copied to the host. A sharded run gathers them one by one.

    every: train steps from one time to the next.
    parameters: write those of parameters.
    gradients: write those of gradients.
    """

    def __init__(self, every: int, parameters: bool, gradients: bool) -> None:
        self.every, self.parameters, self.gradients = every, parameters, gradients

    def on_update(self, task: Task) -> None:
        if task.iteration % self.every:
            return
        writers = [each for each in task.writers if isinstance(each, TensorBoardWriter)]
        if not (writers or task.peers):  # all ranks of a sharded run have to gather
            return
        for name, parameter in task.learner.named_parameters():
            shown = {"parameters": parameter if self.parameters else None,
                     "gradients": parameter.grad if self.gradients else None}  # fmt: skip
            for kind, each in shown.items():
                values = None if each is None else whole(each)
                for writer in () if values is None else writers:
                    add = writer.summary.add_histogram
                    writer.attempt(partial(add, f"{kind}/{name}", values, task.iteration))
