"""For steps whose model computes its losses itself: what it takes, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar

from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.monitor.loss_ledger import MAIN
from sslengine.train_steps.samples import Sample, single_input_sample

S = TypeVar("S")


def model_gives_losses(step: S) -> S:
    """Above a train step that calls no `config.LOSS`: naming one is an error then."""
    step.model_gives_losses = True  # type: ignore[attr-defined]
    return step


def whole_batch_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
    """`input` is the batch: by its own names, each value without its list over sources.

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
    """`loss`, the sum, and each loss under its name; a single tensor is the sum itself."""
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
    """In a test phase a model may give losses, or predictions."""
    values = list(output.values()) if isinstance(output, Mapping) else [output]
    return bool(values) and all(isinstance(each, Tensor) and each.ndim == 0 for each in values)


def _names(output: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in output if name != MAIN)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "an empty dict" if value == {} else f"a {type(value).__name__}"
