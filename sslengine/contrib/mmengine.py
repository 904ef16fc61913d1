"""`model_train_step`: the model owns its step, as mmengine's models do; config.LOSS names none.

    data = model.data_preprocessor(data, training)     if it has one
    losses = model(**data, mode="loss")                a dict's values as keywords
             model(*data, mode="loss")                 a list's or tuple's as arguments
    total, log_vars = model.parse_losses(losses)       if it has it; else the sum of all whose
                                                       names contain "loss", the rest is logged
    model.val_step(data), model.test_step(data)        in test phases, and where only tests run;
                                                       without them: model(..., mode="predict")

The loss call may return losses, (losses, predictions) or (losses, predictions, masks): hooks
find the latter two as `task.last_batch.vis_preds` and `vis_masks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sslengine.engine.loss_dict import LossDictTrainStep, are_losses
from sslengine.engine.step import Loss, Sample
from sslengine.errors import ConfigError, TrainingError, nearest
from sslengine.monitor.store import MAIN
from sslengine.registry import register_train_step

if TYPE_CHECKING:
    from sslengine.engine.task import SelfSupervisionTask


@dataclass
class ModelStepOptions:
    # The model's arguments by the names that the batch has for them: {imgs: data, labels: label}.
    # Empty: the names of INPUT_KEY_NAMES and TARGET_KEY_NAMES.
    ARGUMENTS: dict[str, str] = field(default_factory=dict)


@register_train_step("model_train_step", options=ModelStepOptions)
class ModelTrainStep(LossDictTrainStep):
    def __init__(self, options: ModelStepOptions) -> None:
        self.arguments = options.ARGUMENTS

    def apply(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        """Give the losses in training; in a test phase what the model gives."""
        data, model = self._data(task, sample), task.parts.base_model
        if not task.state.train:
            own = getattr(model, "test_step" if task.parts.plan.test_only else "val_step", None)
            if own is not None:
                return task.parts.precision.as_full(own(data))
            predicted = call(model, preprocessed(model, data, training=False), "predict")
            return task.parts.precision.as_full(predicted)
        returned = call(model, preprocessed(model, data, training=True), "loss")
        given = returned if isinstance(returned, tuple) else (returned,)
        losses, predictions, masks = (*given, None, None)[:3]
        last = task.state.last_batch
        last.vis_preds, last.vis_masks = predictions, masks
        return task.parts.precision.as_full(losses)

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Loss | None:
        model = task.parts.base_model
        with task.state.perf.loss_compute:
            if task.state.train:
                return parse(model, output)
            if not are_losses(output):
                return None
            return parse(model, output if isinstance(output, Mapping) else {MAIN: output})

    def _data(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        batch, keys = sample["input"], task.state.reading
        assert keys is not None
        if sample["target"] is None and "data_idx" not in sample:
            return batch  # the user's collator made it as the model takes it
        own = {name: name for name in (*keys.input_keys, *keys.target_keys)}
        return named_arguments(batch, self.arguments or own)


def named_arguments(batch: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Take arguments of the batch. names: the model's argument -> what the batch calls it."""
    for argument, name in names.items():
        if name not in batch:
            raise ConfigError(
                f"config.TRAINER.model_train_step.ARGUMENTS.{argument}: the batch has no {name!r}, "
                f"it has {', '.join(batch)}. {nearest(name, batch)}".rstrip()
            )
    return {argument: batch[name] for argument, name in names.items()}


def preprocessed(model: Any, data: Any, training: bool) -> Any:
    preprocess = getattr(model, "data_preprocessor", None)
    return data if preprocess is None else preprocess(data, training)


def call(model: Any, data: Any, mode: str) -> Any:
    if isinstance(data, Mapping):
        return model(**data, mode=mode)
    if isinstance(data, (list, tuple)):
        return model(*data, mode=mode)
    raise TypeError(
        f"model_train_step gives the model a dict's values as keywords, a list's or a tuple's as "
        f"arguments; the data is a {type(data).__name__}. See config.DATA.TRAIN.COLLATE_FUNCTION "
        f"and the model's data_preprocessor."
    )


def parse(model: Any, losses: Any) -> dict[str, Tensor]:
    """Return `loss`, what to minimise, and what to log. A list is the sum of its means."""
    if not isinstance(losses, Mapping):
        raise TrainingError(
            f'{type(model).__name__} must return a dict of losses for mode="loss"; it returned a '
            f"{type(losses).__name__}."
        )
    if hasattr(model, "parse_losses"):
        total, named = model.parse_losses(losses)
        given: dict[str, Tensor] = {MAIN: total} | named | {MAIN: total}
        return given
    means = {name: _mean(name, value) for name, value in losses.items()}
    minimised = [value for name, value in means.items() if "loss" in name]
    if not minimised:
        raise TrainingError(
            f"{type(model).__name__} returned {', '.join(means) or 'nothing'}: what is to be "
            f'minimised has "loss" in its name, and none of these has.'
        )
    total = torch.stack(minimised).sum()
    return {MAIN: total} | means | {MAIN: total}


def _mean(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.mean()
    if isinstance(value, (list, tuple)) and all(isinstance(each, Tensor) for each in value):
        return torch.stack([each.mean() for each in value]).sum()
    raise TrainingError(f"{name} is a {type(value).__name__}, not a tensor or a list of tensors.")
