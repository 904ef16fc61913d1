"""Methods that own their network: heads, teacher, queue and loss are in one class.

The argument `trunk` of `__init__` makes a class one of these; its other arguments are options.
Networks compute in the run's precision and return float32. toolbox.py has their parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.data.batch.collators import FIELDS
from sslengine.distributed.sharding import copy_into
from sslengine.errors import DataError, listing
from sslengine.methods.teacher import Schedule, Teacher
from sslengine.models.momentum import rank_0_statistics
from sslengine.models.view_trunk import ViewTrunk


class Fields(dict[str, Any]):
    """A batch by the names of its parts."""

    def __missing__(self, name: str) -> Any:
        raise DataError(
            f"config.DATA.TRAIN: a batch has no {name!r}, it has {listing(self)}. A transform or "
            f"COLLATE_FUNCTION makes it."
        )


class Batch:
    """What a method sees of a step's images."""

    def __init__(self, sample: Mapping[str, Any]) -> None:
        views = sample["input"]  # one batch of images for each view
        views = [views] if isinstance(views, Tensor) else views
        self.views: Sequence[Tensor] = [*views, *sample.get("local_views", ())]
        self.sample = Fields(sample)  # all that the collator made

    @property
    def labels(self) -> Any:
        """Return the label of each image."""
        return self["target"][0]

    @property
    def index(self) -> Tensor:
        """Return the number of each image in its dataset."""
        found: Tensor = self["data_idx"][0]
        return found

    def __getitem__(self, name: str) -> Any:
        """Return a field of the source, an entry an image; or what transforms made, by view."""
        if name not in self.sample:
            raise DataError(
                f"the method reads {name!r}, and the batch has {listing(self.sample)}. Name it in "
                f"config.DATA.TRAIN.FIELDS, if the source has it."
            )
        value = self.sample[name]
        by_view = isinstance(value, Tensor) and name not in self.sample.get(FIELDS, ())
        return value.unflatten(0, (len(self.views), -1)) if by_view else value


class EMA(Teacher):
    """A copy of a module that follows it: without gradient, averaged after each update."""

    def __init__(self, module: nn.Module, momentum: float = 0.996, schedule: Schedule = "cosine",
                 end: float = 1.0, dropout: bool = True) -> None:  # fmt: skip
        super().__init__(momentum, schedule, dropout=dropout, end=end)
        self.attach(module)

    def attach(self, model: nn.Module) -> None:
        """Copy the module, also where a new model is given: it has the module's trunk."""
        (source,) = self._model or (model,)
        super().attach(source)
        trunk = (name for name, each in self.named_modules() if isinstance(each, ViewTrunk))
        self.teacher_part = next(trunk, "")  # type: ignore[misc]

    @property
    def source(self) -> nn.Module:
        """The module that it follows."""
        return self._model[0]

    def start_sharded(self, model: nn.Module) -> None:
        """Start as the module does, but for the trunk, which has started as the model's."""
        theirs = dict(self.source.named_parameters()) | dict(self.source.named_buffers())
        for name, own in (*self.module.named_parameters(), *self.module.named_buffers()):
            if name in theirs:
                copy_into(own, theirs[name])

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:  # type: ignore[override]
        output = self.module(*inputs)
        if self.training and not self._alone:
            rank_0_statistics(self.module)
        return output
