"""What the stages of a phase's steps call: decided when the phase begins, not in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sslengine.distributed.data_parallel import broadcast_all


class Bound:
    """In single precision, `model` is the model itself, unless its buffers are sent by hand."""

    __slots__ = ("loss", "model", "with_model")

    def __init__(self, task: Any) -> None:
        parts, model, precision = task.parts, task.parts.model, task.parts.precision
        by_hand = task.state.train and parts.exchange.broadcast_buffers_by_hand

        def with_model(call: Callable[[Any], Any]) -> Any:
            with precision.autocast():
                if by_hand:  # ranks have the same buffers before each forward
                    broadcast_all(parts.base_model.buffers())
                return call(model)

        def mixed_loss(output: Any, sample: Any) -> Any:
            return loss(precision.as_full(output), sample)

        self.with_model = with_model
        self.model = self._model if by_hand or precision.mixed else model
        loss = _loss(parts, task.method_step)
        self.loss = mixed_loss if precision.mixed else loss

    def _model(self, images: Any) -> Any:
        return self.with_model(lambda model: model(images))


def _loss(parts: Any, step: Any) -> Callable[[Any, Any], Any]:
    method = parts.loss
    if parts.loss_takes_sample:
        return lambda output, sample: method(output, sample, step)
    return lambda output, sample: method(output, sample["target"])
