"""Refuse labels that the model has no outputs for: on a GPU they end a run without saying why."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from sslengine.data.augment.transform import MakesLabel, TakesLabels
from sslengine.data.feed import DataFeed
from sslengine.data.options import SplitOptions
from sslengine.errors import DataError
from sslengine.methods.supervised import BinaryCrossEntropyLoss, CrossEntropyLoss
from sslengine.models.model import Model
from sslengine.models.parts import heads_of
from sslengine.registry import COLLATORS, TRANSFORMS


def expect_labels_in_range(
    loss: nn.Module, model: nn.Module, feed: Any, options: SplitOptions, split: str
) -> None:
    """Raise DataError for a class number beyond the outputs, or a row without an indicator.

    Labels that a transform or a collator of the user's makes are not known here.
    """
    outputs, where = _count_outputs(model), f"config.DATA.{split}"
    if not isinstance(feed, DataFeed) or not outputs or _are_changed(options):
        return
    one_class = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss, CrossEntropyLoss))
    if one_class and options.LABEL_TYPE == "sample_index" and feed.num_samples > outputs:
        raise DataError(
            f"{where}.LABEL_TYPE: sample_index: labels are the numbers of {feed.num_samples} "
            f"images, and the model's head (config.MODEL.HEAD.PARAMS) has {outputs} outputs. For "
            f"labels of classes set {where}.LABEL_SOURCES."
        )
    if options.LABEL_TYPE != "standard":
        return
    for number, column in enumerate(getattr(feed.dataset, "standard_labels", [])):
        if one_class and column.ndim == 1:
            bad = ((column < 0) | (column >= outputs)) & (column != _ignored(loss))
            expected = f"0 to {outputs - 1}, the outputs of config.MODEL.HEAD.PARAMS"
        elif isinstance(loss, BinaryCrossEntropyLoss) and column.ndim == 2:
            bad, expected = (abs(column) > 1).any(axis=1), "indicators 1, 0, or -1 for unknown"
        elif one_class and column.dtype.kind != "f":
            bad = np.ones(len(column), bool)
            expected = "one class (config.LOSS.name: bce_logits_multiple_output_single_target)"
        else:
            continue  # torch and the loss compare shapes
        rows = np.flatnonzero(bad)
        if rows.size:
            label, image = column[rows[0]], feed.dataset.name(int(rows[0]))
            names = feed.classes[number].names if number < len(feed.classes) else ()
            label = repr(names[label]) if names and column.ndim == 1 else label
            raise DataError(
                f"{where}.LABEL_SOURCES.{number}: the label {label} of {image} does not fit the "
                f"loss: expected {expected}. {rows.size} samples have such labels."
            )


def _count_outputs(model: nn.Module) -> int:
    """Return the outputs of the narrowest head, as far as linear layers show; 0: unknown."""
    widths = []
    for head in heads_of(model) if isinstance(model, Model) else ():
        linear = [each for each in head.modules() if isinstance(each, nn.Linear)]
        widths += [linear[-1].out_features] if linear else [0]
    return min(widths, default=0)


def _are_changed(options: SplitOptions) -> bool:
    makers = (TRANSFORMS.get(entry["name"]) for entry in options.TRANSFORMS)
    makes = any(
        isinstance(each, type) and issubclass(each, (MakesLabel, TakesLabels)) for each in makers
    )
    collator = COLLATORS.get(options.COLLATE_FUNCTION)
    return makes or not str(getattr(collator, "__module__", "")).startswith("sslengine.")


def _ignored(loss: Any) -> int:
    index = getattr(loss, "ignore_index", None)
    return int(loss.options.ignore_index if index is None else index)
