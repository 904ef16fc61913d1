"""Methods that own their network: heads, teacher, queue and loss are in one class.

The argument `trunk` of `__init__` makes a class one of these; its other arguments are options.
Networks compute in the run's precision and return float32. toolbox.py has their parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError, listing
from sslengine.methods.teacher import Schedule, Teacher
from sslengine.models.momentum import rank_0_statistics
from sslengine.models.view_trunk import ViewTrunk


def owns_network(method: Any) -> bool:
    """Tell whether a class takes the trunk itself."""
    return isinstance(method, type) and "trunk" in inspect.signature(method).parameters


class Batch:
    """What a method sees of a step's images."""

    def __init__(self, sample: Mapping[str, Any]) -> None:
        views = sample["input"]  # one batch of images for each view
        self.views: Sequence[Tensor] = [views] if isinstance(views, Tensor) else views
        self._sample = sample

    @property
    def labels(self) -> Any:
        """Return the label of each image."""
        return self["target"][0]

    @property
    def index(self) -> Tensor:
        """Return the number of each image in its dataset."""
        found: Tensor = self["data_idx"][0]
        return found

    def __getitem__(self, name: str) -> Sequence[Any]:
        """Return another field of the batch, for each view."""
        if name not in self._sample:
            raise ConfigError(
                f"the method needs the field {name!r} of a batch, and it has "
                f"{listing(self._sample)}: see config.DATA.TRAIN.TRANSFORMS and COLLATE_FUNCTION."
            )
        value: Any = self._sample[name]
        if isinstance(value, Tensor):
            return value.unflatten(0, (len(self.views), -1))  # type: ignore[no-any-return]
        return value  # type: ignore[no-any-return]


class EMA(Teacher):
    """A copy of a module that follows it: without gradient, averaged after each update."""

    def __init__(self, module: nn.Module, momentum: float = 0.996, schedule: Schedule = "cosine",
                 end: float = 1.0) -> None:  # fmt: skip
        super().__init__(momentum, schedule, end=end)
        self.attach(module)

    def attach(self, model: nn.Module) -> None:
        """Copy the module, also where a new model is given: it has the module's trunk."""
        (source,) = self._model or (model,)
        super().attach(source)
        trunk = (name for name, each in self.named_modules() if isinstance(each, ViewTrunk))
        self.teacher_part = next(trunk, "")  # type: ignore[misc]

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:  # type: ignore[override]
        output = self.module(*inputs)
        if self.training and not self._alone:
            rank_0_statistics(self.module)
        return output
