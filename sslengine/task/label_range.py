"""Labels must be classes that the model has outputs for; else training ends in its first steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from sslengine.data.augment.transform import MakesLabel
from sslengine.data.options import SplitOptions
from sslengine.errors import DataError, listing
from sslengine.methods import supervised
from sslengine.models.model import Model
from sslengine.models.parts import heads_of
from sslengine.registry import TRANSFORMS

ONE_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, supervised.CrossEntropyLoss)


def check_label_range(
    loss: nn.Module, model: nn.Module, feed: Any, options: SplitOptions, split: str
) -> None:
    """Of a loss that takes one class an image, and of labels that are not made by a transform."""
    outputs = _outputs(model)
    dataset = getattr(feed, "dataset", None)
    if not isinstance(loss, ONE_CLASS) or not outputs or options.LABEL_TYPE != "standard":
        return
    makers = (TRANSFORMS.get(entry["name"]) for entry in options.TRANSFORMS)
    if any(isinstance(each, type) and issubclass(each, MakesLabel) for each in makers):
        return
    ignored = getattr(loss, "ignore_index", None)
    ignored = loss.options.ignore_index if ignored is None else ignored  # type: ignore[union-attr]
    for position, column in enumerate(getattr(dataset, "standard_labels", [])):
        if column.ndim != 1:
            continue
        wrong = np.flatnonzero(((column < 0) | (column >= outputs)) & (column != ignored))
        names = feed.classes[position].names if position < len(feed.classes) else ()
        if wrong.size:
            where = f"config.DATA.{split}.LABEL_SOURCES.{position}"
            raise DataError(_told(where, int(column[wrong[0]]), names, outputs, wrong, feed))


def _outputs(model: nn.Module) -> int:
    """Of the narrowest head, as far as linear layers show; 0: unknown."""
    if not isinstance(model, Model):
        return 0
    widths = []
    for head in heads_of(model):
        linear = [each for each in head.modules() if isinstance(each, nn.Linear)]
        widths += [linear[-1].out_features] if linear else [0]
    return min(widths, default=0)


def _told(
    where: str, label: int, names: tuple[str, ...], outputs: int, wrong: Any, feed: Any
) -> str:
    name = feed.dataset.name(int(wrong[0]))
    if names:
        what = f"there are {len(names)} classes ({listing(names, 8)}), and {names[label]!r} is"
    else:
        what = f"the label {label} of {name} is"
    return (
        f"{where}: {what} out of range: the model's head (config.MODEL.HEAD.PARAMS) has {outputs} "
        f"outputs, for the labels 0 to {outputs - 1}. {wrong.size} samples have such labels."
    )
