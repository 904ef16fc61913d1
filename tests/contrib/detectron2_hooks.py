"""Hooks such as people write for detectron2's trainer, against its published interface alone."""

from __future__ import annotations

import copy
from typing import Any

import torch


class HookBase:
    """The interface: five calls that do nothing, a state that is empty, `self.trainer`."""

    trainer: Any = None

    def before_train(self) -> None: ...
    def after_train(self) -> None: ...
    def before_step(self) -> None: ...
    def after_backward(self) -> None: ...
    def after_step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}


class WeightAverage(HookBase):
    """An exponential moving average of the weights, kept over restarts."""

    def __init__(self, decay: float = 0.5) -> None:
        self.decay = decay
        self.average: dict[str, torch.Tensor] = {}

    def before_train(self) -> None:
        if not self.average:
            self.average = copy.deepcopy(dict(self.trainer.model.state_dict()))

    @torch.no_grad()
    def after_step(self) -> None:
        for name, value in self.trainer.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = {name: value.clone() for name, value in state["average"].items()}


class ValidationLoss(HookBase):
    """The loss on images that are put aside, every so many steps and at the end."""

    def __init__(self, period: int = 2) -> None:
        self.period = period
        self.at: list[int] = []

    def after_step(self) -> None:
        following = self.trainer.iter + 1
        if following % self.period == 0 or following == self.trainer.max_iter:
            self._validate()

    def _validate(self) -> None:
        model = self.trainer.model
        was_training = model.training
        model.eval()
        with torch.no_grad():
            embeddings = model(torch.full((2, 3, 8, 8), 0.5))[0]
        model.train(was_training)
        self.at.append(self.trainer.iter)
        self.trainer.storage.put_scalar(
            "validation_loss", embeddings.square().mean(), smoothing_hint=False
        )


class Diary(HookBase):
    """Notes each call and the iteration in it."""

    notes: list[tuple[str, int]]

    def __init__(self) -> None:
        self.notes = []

    def _note(self, name: str) -> None:
        assert self.trainer.storage.iter == self.trainer.iter
        self.notes.append((name, self.trainer.iter))

    def before_train(self) -> None:
        self._note("before_train")

    def after_train(self) -> None:
        self._note("after_train")

    def before_step(self) -> None:
        self._note("before_step")

    def after_backward(self) -> None:
        grads = [g for group in self.trainer.optimizer.param_groups for g in group["params"]]
        assert any(each.grad is not None for each in grads)
        self._note("after_backward")

    def after_step(self) -> None:
        self.trainer.storage.put_scalars(noise=float(self.trainer.iter), smoothing_hint=True)
        self._note("after_step")
