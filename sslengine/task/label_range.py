"""Labels must be classes that the model has outputs for; else training ends in its first steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from sslengine.data.augment.transform import MakesLabel, TakesLabels
from sslengine.data.feed import DataFeed
from sslengine.data.options import SplitOptions
from sslengine.errors import DataError, listing
from sslengine.methods import supervised
from sslengine.models.model import Model
from sslengine.models.parts import heads_of
from sslengine.registry import TRANSFORMS

ONE_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, supervised.CrossEntropyLoss)
SEVERAL = (nn.BCEWithLogitsLoss, supervised.BinaryCrossEntropyLoss)

CHANGE = (MakesLabel, TakesLabels)
# Collators that do not change labels.
LEAVES_LABELS = (
    "default_collate", "simclr_collator", "multicrop_collator", "moco_collator",
    "siamese_collator", "ibot_multicrop_masking_collator", "spread_masks_collator",
)  # fmt: skip


def check_label_range(
    loss: nn.Module, model: nn.Module, feed: Any, options: SplitOptions, split: str
) -> None:
    """Of a loss that takes classes, and of labels that no transform or collator changes."""
    outputs = _outputs(model)
    dataset = getattr(feed, "dataset", None)
    if not isinstance(loss, (*ONE_CLASS, *SEVERAL)) or not outputs:
        return
    if _are_changed(options):
        return
    numbered = isinstance(feed, DataFeed) and options.LABEL_TYPE == "sample_index"
    if numbered and isinstance(loss, ONE_CLASS):
        _check_numbers(feed.num_samples, outputs, split)
    if options.LABEL_TYPE != "standard":
        return
    for position, column in enumerate(getattr(dataset, "standard_labels", [])):
        where = f"config.DATA.{split}.LABEL_SOURCES.{position}"
        if column.ndim == 2 or isinstance(loss, SEVERAL):
            _check_rows(loss, column, outputs, where)
            continue
        wrong = np.flatnonzero(((column < 0) | (column >= outputs)) & (column != _ignored(loss)))
        names = feed.classes[position].names if position < len(feed.classes) else ()
        if wrong.size:
            raise DataError(_message(where, int(column[wrong[0]]), names, outputs, wrong, feed))


def _check_numbers(count: int, outputs: int, split: str) -> None:
    """Each image may be a class: then there is an output for each."""
    if count > outputs:
        raise DataError(
            f"config.DATA.{split}.LABEL_TYPE: sample_index: labels are the numbers of {count} "
            f"images, and the model's head (config.MODEL.HEAD.PARAMS) has {outputs} outputs. For "
            f"labels of classes set config.DATA.{split}.LABEL_SOURCES."
        )


def _are_changed(options: SplitOptions) -> bool:
    makers = (TRANSFORMS.get(entry["name"]) for entry in options.TRANSFORMS)
    changed = any(isinstance(each, type) and issubclass(each, CHANGE) for each in makers)
    return changed or options.COLLATE_FUNCTION not in LEAVES_LABELS


def _ignored(loss: Any) -> int:
    index = getattr(loss, "ignore_index", None)
    return int(loss.options.ignore_index if index is None else index)


def _check_rows(loss: nn.Module, column: Any, outputs: int, where: str) -> None:
    """Rows go with a loss of several classes, rows of probabilities with any."""
    if column.ndim != 2:
        raise DataError(
            f"{where}: the loss takes several classes of an image, and labels are one class each. "
            f"Put OneHotEncode among the TRANSFORMS, set LABEL_SEPARATOR, or choose config.LOSS."
            f"name: cross_entropy_multiple_output_single_target."
        )
    if isinstance(loss, ONE_CLASS) and column.dtype.kind != "f":
        raise DataError(
            f"{where}: the loss takes one class of an image, and labels are rows of indicators. "
            f"Choose config.LOSS.name: bce_logits_multiple_output_single_target."
        )
    if column.shape[1] != outputs:
        raise DataError(
            f"{where}: labels have a column for each of {column.shape[1]} classes, and the model's "
            f"head (config.MODEL.HEAD.PARAMS) has {outputs} outputs."
        )
    if isinstance(loss, SEVERAL) and not ((column >= -1) & (column <= 1)).all():
        raise DataError(f"{where}: expected indicators 1, 0, or -1 for unknown.")


def _outputs(model: nn.Module) -> int:
    """Of the narrowest head, as far as linear layers show; 0: unknown."""
    if not isinstance(model, Model):
        return 0
    widths = []
    for head in heads_of(model):
        linear = [each for each in head.modules() if isinstance(each, nn.Linear)]
        widths += [linear[-1].out_features] if linear else [0]
    return min(widths, default=0)


def _message(
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
