"""Plan what `sslengine judge` trains with labels: sweeps of heads on a frozen trunk, and tuning."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sslengine.config.compose import overrides, typed
from sslengine.config.facts import world_size
from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.judged_view import augmented
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.engine.build import classes_of_train
from sslengine.engines.options import HELD_OUT as CHOSEN_ON_TRAIN
from sslengine.engines.options import SweepOptions
from sslengine.errors import ConfigError, DataError
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.optim.layer_depth import layer_depth
from sslengine.trust import closed

# The length of a sweep: epochs as published, and not fewer steps of small data.
SWEPT_EPOCHS, FEWEST_STEPS = 10, 1000
SHARE_TRAINED_ON = 1 - SweepOptions().HELD_OUT

Entries = list[dict[str, Any]]
# Runs, or why there are none.
Parts = tuple[list[Resolved], str]
HEADS = ("linear", "attentive")


def sweep(given: argparse.Namespace, images: Mapping[str, Any], entries: Entries) -> Parts:
    """Plan a run for each kind of heads.

    images: the keys of labelled images. entries: the transforms of test images.
    """
    runs: list[Resolved] = []
    for heads in HEADS:
        values, recipe = _values(given, images, entries), f"sweep/{heads}"
        opened = _open(given, values, recipe)
        data = read(opened.config, DataOptions)
        with closed(opened.opened):
            if why := _no_classes(opened) or _none_to_choose_on(opened):
                return [], f"{', '.join(f'{each}_sweep' for each in HEADS)}: left out, {why}"
            values |= {**_batch(opened, SHARE_TRAINED_ON), "HEAD_SWEEP.UNTRAINED": True}
        values["DATA.TRAIN.TRANSFORMS"] = augmented(entries, data)
        runs.append(_open(given, values | _length(given, opened, values), recipe))
    return runs, ""


def fine_tune(given: argparse.Namespace, images: Mapping[str, Any], entries: Entries) -> Parts:
    """Plan runs by a recipe that fits the trunk: with all labels, with 10 % and 1 % of them."""
    values = _values(given, images, entries)
    opened = _open(given, values, "finetune/cnn")
    with closed(opened.opened):
        if why := _no_classes(opened):
            return [], f"finetune: left out, {why}"
        recipe, numbered = _recipe(read(opened.config, ModelOptions))
        values |= _batch(opened)
    values["DATA.TRAIN.TRANSFORMS"] = augmented(entries, read(opened.config, DataOptions))
    if not numbered:
        values["OPTIMIZER.param_group_constructor"] = "default"
    of_all = _open(given, values, f"finetune/{recipe}")
    if _one_class_each(opened):
        return [of_all, *(_plan_few(given, values, recipe, share) for share in (10, 1))], ""
    return [of_all], ""


def _plan_few(
    given: argparse.Namespace, values: Mapping[str, Any], recipe: str, percent: int
) -> Resolved:
    """Plan a convolutional network as SimCLR's authors do it; a ViT as with all labels."""
    sampling = "DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE"
    values = {**values, sampling: percent / 100}
    if recipe == "vit":
        values["FINETUNE.NAME"] = f"finetune_{percent}_percent"
        file = "finetune/vit"
    else:
        values.pop("OPTIMIZER.param_group_constructor", None)
        file = f"semi_supervised/simclr_{percent}_percent"
    opened = _open(given, values, file)
    with closed(opened.opened):
        return _open(given, {**values, **_batch(opened)}, file)


def _one_class_each(opened: Resolved) -> bool:
    """Not several: of these no share of each class can be drawn."""
    with closed(opened.opened):
        found = classes_of_train(opened.config)
    return bool(found) and not found[0].width


def _values(
    given: argparse.Namespace, images: Mapping[str, Any], entries: Entries
) -> dict[str, Any]:
    return {
        **images,
        "CHECKPOINT.DIR": str(given.run),
        "MODEL.WEIGHTS_INIT.NETWORK": given.network,
        "DATA.TEST.TRANSFORMS": entries,
    }


def _no_classes(opened: Resolved) -> str:
    """Say why nothing can be trained with the labels; nothing if it can."""
    data = read(opened.config, DataOptions)
    classes: list[Classes] = []
    for split in ("TRAIN", "TEST"):
        options: SplitOptions = getattr(data, split)
        if options.LABEL_TYPE != "standard" or not options.LABEL_SOURCES:
            return f"the images of {split} have no labels"
        try:
            dataset = _dataset(opened, split, classes)
        except DataError as error:
            return str(error)
        classes, labels = dataset.classes, np.asarray(dataset.labels[0])
        known = labels[labels >= 0]
        if not len(known):
            return f"no image of {split} has a label"
        if split == "TRAIN" and len(np.unique(known)) < 2:
            return f"the {len(known)} labels of TRAIN are all the same"
    return ""


def _none_to_choose_on(opened: Resolved) -> str:
    options, data = read(opened.config, SweepOptions), read(opened.config, DataOptions)
    if not data.TEST.DATA_SOURCES or data.HOLD_OUT.SHARE:
        return "there are no separate test images"
    count = _count(opened)
    if options.SELECT_ON == CHOSEN_ON_TRAIN and round(options.HELD_OUT * count) == 0:
        return (
            f"{count} training images are too few to hold some out, on which the head is chosen "
            f"(HEAD_SWEEP.HELD_OUT={options.HELD_OUT:g})"
        )
    return ""


def _length(
    given: argparse.Namespace, opened: Resolved, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Unless --set says it."""
    said = {each.split("=")[0].removeprefix("config.") for each in given.values}
    if "OPTIMIZER.num_iterations" in said:
        return {}
    if "OPTIMIZER.num_epochs" in said:
        return {"OPTIMIZER.num_iterations": None}
    with closed(opened.opened):
        count = _count(opened) * SHARE_TRAINED_ON
    batch = values["DATA.TRAIN.BATCHSIZE_PER_REPLICA"] * world_size(opened.config)
    return {"OPTIMIZER.num_iterations": max(SWEPT_EPOCHS * int(count // batch), FEWEST_STEPS)}


def _open(given: argparse.Namespace, values: Mapping[str, Any], recipe: str) -> Resolved:
    said = [*overrides(values), *typed(given.values)]
    return open_run(
        given.run, said, given.trust_config, judged=True, added=f"benchmark/{recipe}",
        as_trained=True,
    )  # fmt: skip


def _recipe(options: ModelOptions) -> tuple[str, bool]:
    """The file in configs/benchmark/finetune, and whether the trunk's layers can be numbered."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        trunk = build_trunk(options)
    try:
        return ("vit" if layer_depth(nn.ModuleDict({"trunk": trunk})).is_vit else "cnn"), True
    except ConfigError:
        return "cnn", False


def _batch(opened: Resolved, share: float = 1.0) -> dict[str, Any]:
    """Return the batch; of few images an even number that each rank has: mixing takes pairs."""
    most = int(_count(opened) * share) // world_size(opened.config) // 2 * 2
    size = read(opened.config, DataOptions).TRAIN.BATCHSIZE_PER_REPLICA
    return {"DATA.TRAIN.BATCHSIZE_PER_REPLICA": max(2, min(size - size % 2, most))}


def _count(opened: Resolved) -> int:
    """Count the training images."""
    return len(_dataset(opened, "TRAIN"))


def _dataset(opened: Resolved, split: str, classes: Sequence[Classes] = ()) -> SSLDataset:
    data, seed = read(opened.config, DataOptions), read(opened.config, RunOptions).SEED_VALUE
    return SSLDataset(getattr(data, split), split, seed, classes=classes, hold_out=data.HOLD_OUT)
