"""`sslengine judge --suite full`: fine-tune the run's network by a recipe that fits its trunk."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sslengine.command.text import overrides, typed
from sslengine.config.facts import world_size
from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.judged_view import augmented
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.errors import ConfigError
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.optim.layer_depth import layer_depth
from sslengine.trust import closed


def run_of(
    given: argparse.Namespace, images: Mapping[str, Any], entries: list[dict[str, Any]]
) -> Resolved:
    """images: the keys of labelled images. entries: the transforms of test images."""
    values: dict[str, Any] = {
        **images,
        "CHECKPOINT.DIR": str(given.run),
        "MODEL.WEIGHTS_INIT.NETWORK": given.network,
        "DATA.TEST.TRANSFORMS": entries,
    }
    opened = _open(given, values, "cnn")
    train = opened.config.DATA.TRAIN
    if train.LABEL_TYPE != "standard" or not train.LABEL_SOURCES:
        raise ConfigError(
            "--suite full: fine-tuning needs labels: images of several classes for --train and "
            "--val. Without labels take --suite quick."
        )
    with closed(opened.opened):
        recipe, numbered = _recipe(read(opened.config, ModelOptions))
        values |= _batch(opened)
    values["DATA.TRAIN.TRANSFORMS"] = augmented(entries, read(opened.config, DataOptions))
    if not numbered:
        values["OPTIMIZER.param_group_constructor"] = "default"
    return _open(given, values, recipe)


def _open(given: argparse.Namespace, values: Mapping[str, Any], recipe: str) -> Resolved:
    said = [*overrides(values), *typed(given.values)]
    return open_run(
        given.run, said, given.trust_config, judged=True, added=f"benchmark/finetune/{recipe}"
    )


def _recipe(options: ModelOptions) -> tuple[str, bool]:
    """The file in configs/benchmark/finetune, and whether the trunk's layers can be numbered."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        trunk = build_trunk(options)
    try:
        return ("vit" if layer_depth(nn.ModuleDict({"trunk": trunk})).is_vit else "cnn"), True
    except ConfigError:
        return "cnn", False


def _batch(opened: Resolved) -> dict[str, Any]:
    """Of few images an even number that each rank has, since mixing takes pairs."""
    data, seed = read(opened.config, DataOptions), read(opened.config, RunOptions).SEED_VALUE
    count = len(SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT))
    most = count // world_size(opened.config) // 2 * 2
    size = data.TRAIN.BATCHSIZE_PER_REPLICA
    return {"DATA.TRAIN.BATCHSIZE_PER_REPLICA": max(2, min(size - size % 2, most))}
