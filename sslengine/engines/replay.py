"""`replay`: after a non-finite loss, run the last steps again and find the module it comes from.

A resumed run is bit-exact, so the steps since its newest checkpoint can be repeated exactly (on a
GPU if its kernels are deterministic). The replay checks every module's output, and autograd's
anomaly detection checks every gradient. The run is not changed: the replay writes to a temporary
folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.resume import Resumable, find
from sslengine.config.options import TrainerOptions
from sslengine.config.sections import read
from sslengine.distributed.ranks import rank
from sslengine.distributed.sharding import local
from sslengine.engine import loop
from sslengine.engines.run import Run
from sslengine.errors import NonFiniteLossError, TrainingError
from sslengine.monitor.store import name_few
from sslengine.registry import TASKS, register_engine


@register_engine("replay")
def replay(run: Run) -> None:
    with tempfile.TemporaryDirectory(prefix="replay_") as scratch:
        task = TASKS.get(read(run.config, TrainerOptions).TASK_NAME)(
            run.config, Path(scratch), run.device
        )
        task.prepare()
        options = read(run.config, CheckpointOptions)
        found = find(run.run_dir / "checkpoints", options, task.peers)
        if found is None:
            task.load_initial_weights()
        else:
            task.set_classy_state(found.state["classy_state_dict"])
        began, start = task.iteration, _start(found)
        if task.done_training():
            run.console.print(
                f"{run.run_dir}: nothing to replay: the run made all its {began} steps, and "
                f"{start} is after the last of them."
            )
            return
        run.console.print(f"{run.run_dir}: replay from step {began + 1}, {start}")
        problem = _replay(task)
    if problem is not None:
        raise TrainingError(problem)  # the launcher reports that of the first rank
    run.console.print(f"steps {began + 1} to {task.iteration}: all values are finite.")


def _start(found: Resumable | None) -> str:
    return found.path.name if found else "from the start: there is no checkpoint"


def _replay(task: Any) -> str | None:
    """Tell what went wrong, and in which step; None if all values are finite."""
    watch(task.base_model, "model")
    watch(task.loss, "loss")
    try:
        # Checks each gradient on the host: several times slower.
        with torch.autograd.set_detect_anomaly(True):
            loop.run(task)
    except (NonFiniteLossError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "nan" not in str(error):
            raise
        samples = task.last_batch.indices
        named = "" if samples is None else f"\n  images: {name_few(samples, task.name_sample)}"
        return f"iteration {task.iteration + 1}, rank {rank()}: {error}{named}"
    return None


def watch(module: nn.Module, name: str) -> None:
    """It and all below it."""
    seen = Watch(f"{name} ({type(module).__name__})")
    module.register_forward_pre_hook(seen.look_at_input)
    module.register_forward_hook(seen)
    for each, child in module.named_children():
        watch(child, f"{name}.{each}")


class Watch:
    """A forward hook that raises where a module's output is not finite."""

    def __init__(self, name: str) -> None:
        self.name, self.got_finite = name, True

    def look_at_input(self, module: nn.Module, inputs: Any) -> None:
        self.got_finite = all(bool(torch.isfinite(each).all()) for each in _tensors(inputs))

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        for tensor in _tensors(output):
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                # Of this rank's shard only: a gather would wait for the other ranks.
                weights = ((n, local(p.detach())) for n, p in module.named_parameters())
                largest = {n: float(p.abs().max()) for n, p in weights if p.numel()}
                given = "finite" if self.got_finite else "not finite"
                raise NonFiniteLossError(
                    f"{self.name} is the first whose output is not finite: {bad} of "
                    f"{tensor.numel()} values. Its input is {given}; its largest weights: "
                    f"{', '.join(f'{n} {v:.3g}' for n, v in largest.items()) or 'it has none'}."
                )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []
