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

from torch import Tensor, nn

from sslengine.engine.step import Sample, TrainStep, expect_numbers, single_input_sample
from sslengine.errors import TrainingError
from sslengine.monitor.store import MAIN
from sslengine.registry import register_train_step

if TYPE_CHECKING:
    from sslengine.engine.task import SelfSupervisionTask


@register_train_step("loss_dict_train_step")
class LossDictTrainStep(TrainStep):
    model_gives_losses = True

    @staticmethod
    def make_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
        """Give the batch as `input`: by its own names, each value without its list over sources.

        A batch of another form than the engine's collators make is passed to the model unchanged.
        """
        lists = batch.values() if isinstance(batch, dict) else [None]
        if not all(isinstance(values, list) and len(values) == 1 for values in lists):
            return {"input": batch, "target": None}
        named = {key: values[0] for key, values in batch.items()}
        return {**single_input_sample(batch, inputs, targets), "input": named}

    def forward(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        return task.parts.precision.as_full(super().forward(task, sample))

    def apply(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        return giver_of_losses(task.parts)(sample["input"])

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Any:
        if task.state.train or are_losses(output):
            return sum_of_losses(output, type(giver_of_losses(task.parts)).__name__)
        return None

    def measure(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> None:
        """Measure predictions: losses of a test phase are recorded."""
        is_loss = task.state.train or are_losses(output)
        super().measure(task, None if is_loss else output, sample)


def giver_of_losses(parts: Any) -> nn.Module:
    """Return the model, or the module that lends it its trunk."""
    found: nn.Module = parts.loss if parts.whole else parts.base_model
    return found


def sum_of_losses(output: Any, model: str) -> dict[str, Tensor]:
    """Return `loss`, the sum, and each loss under its name; a single tensor is the sum itself."""
    losses = expect_numbers(output, model)
    if not losses or (MAIN in losses and len(losses) > 1):
        raise TrainingError(
            f"{model} returned {', '.join(map(repr, losses)) or 'no loss'}: expected one tensor, "
            f"or a dict of losses, of which none is named {MAIN!r}, the name of their sum."
        )
    parts = {name: loss.reshape(()) for name, loss in losses.items()}
    return {MAIN: reduce(add, parts.values()), **parts}


def are_losses(output: Any) -> bool:
    """Tell losses from predictions: in a test phase a model may give either."""
    values = list(output.values()) if isinstance(output, Mapping) else [output]
    return bool(values) and all(isinstance(each, Tensor) and each.ndim == 0 for each in values)
