"""`loss_dict_train_step`: the model takes the batch and returns its losses; config.LOSS names none.

    losses = model({"data": images, "label": targets, ...})     training: {"name": scalar, ...}
    predictions = model(batch)                                  test phases, in eval mode

The losses are added up; each is logged under its name, as the mean over ranks. A model that
returns scalars in test phases too has them recorded there; anything else goes to the meters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sslengine.engine.step import Loss, Sample, TrainStep, single_input_sample
from sslengine.errors import TrainingError
from sslengine.monitor.losses import MAIN
from sslengine.registry import register_train_step

if TYPE_CHECKING:
    from sslengine.engine.task import SelfSupervisionTask


@register_train_step("loss_dict_train_step")
class LossDictTrainStep(TrainStep):
    model_gives_losses = True

    def make_sample(self, batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
        return whole_batch_sample(batch, inputs, targets)

    def forward(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        return task.parts.precision.as_full(super().forward(task, sample))

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Loss | None:
        if task.state.train or are_losses(output):
            return sum_of_losses(output, type(task.parts.base_model).__name__)
        return None

    def measure(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> None:
        """Measure predictions: losses of a test phase are recorded."""
        is_loss = task.state.train or are_losses(output)
        super().measure(task, None if is_loss else output, sample)


def whole_batch_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
    """Give the batch as `input`: by its own names, each value without its list over sources.

    A batch of another form than the engine's collators make is passed to the model unchanged.
    """
    if not is_engine_batch(batch):
        return {"input": batch, "target": None}
    named = {key: values[0] for key, values in batch.items()}
    sample = single_input_sample(batch, inputs, targets)
    return {**sample, "input": named}


def is_engine_batch(batch: Any) -> bool:
    return isinstance(batch, dict) and all(
        isinstance(values, list) and len(values) == 1 for values in batch.values()
    )


def sum_of_losses(output: Any, model: str) -> dict[str, Tensor]:
    """Return `loss`, the sum, and each loss under its name; a single tensor is the sum itself."""
    if isinstance(output, Tensor):
        output = {MAIN: output}
    if not isinstance(output, Mapping) or not output:
        raise TrainingError(
            f"{model} must return its losses, a dict of tensors or one tensor; it returned "
            f"{_described(output)}."
        )
    for name, loss in output.items():
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise TrainingError(
                f"{model} returned {name!r} as {_described(loss)}; a loss is one number."
            )
    if MAIN in output and len(output) > 1:
        raise TrainingError(
            f"{model} returned a loss named {MAIN!r} and also {_names(output)}: that name is taken "
            f"by their sum. Call it otherwise."
        )
    parts = {name: loss.reshape(()) for name, loss in output.items()}
    return total_first(reduce(add, parts.values()), parts)


def total_first(total: Tensor, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {MAIN: total, **{name: loss for name, loss in parts.items() if name != MAIN}}


def are_losses(output: Any) -> bool:
    """Tell losses from predictions: in a test phase a model may give either."""
    values = list(output.values()) if isinstance(output, Mapping) else [output]
    return bool(values) and all(isinstance(each, Tensor) and each.ndim == 0 for each in values)


def _names(output: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in output if name != MAIN)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "an empty dict" if value == {} else f"a {type(value).__name__}"
