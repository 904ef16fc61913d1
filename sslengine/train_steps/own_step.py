"""What a model that owns its step offers, and how it is called: for model_train_step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import ConfigError, TrainingError, nearest
from sslengine.train_steps.model_losses import total_first


def named_arguments(batch: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """names: the model's argument -> what the batch calls it."""
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
    """`loss`, what to minimise, and what to log. A list under a name is the sum of its means."""
    if not isinstance(losses, Mapping):
        raise TrainingError(
            f'{type(model).__name__} must return a dict of losses for mode="loss"; it returned a '
            f"{type(losses).__name__}."
        )
    if hasattr(model, "parse_losses"):
        return total_first(*model.parse_losses(losses))
    means = {name: _mean(name, value) for name, value in losses.items()}
    minimised = [value for name, value in means.items() if "loss" in name]
    if not minimised:
        raise TrainingError(
            f"{type(model).__name__} returned {', '.join(means) or 'nothing'}: what is to be "
            f'minimised has "loss" in its name, and none of these has.'
        )
    return total_first(torch.stack(minimised).sum(), means)


def _mean(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.mean()
    if isinstance(value, (list, tuple)) and all(isinstance(each, Tensor) for each in value):
        return torch.stack([each.mean() for each in value]).sum()
    raise TrainingError(f"{name} is a {type(value).__name__}, not a tensor or a list of tensors.")
