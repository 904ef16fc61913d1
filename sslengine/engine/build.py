"""From the config to the parts of a task. Each function makes one part."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from sslengine.checkpoint.contents import has_checkpoints
from sslengine.config.components import owns_network
from sslengine.config.facts import is_sharded, precision_of_amp, run_facts
from sslengine.config.options import (
    SHARDED_TASK,
    DistributedOptions,
    MachineOptions,
    RunOptions,
    TrainerOptions,
)
from sslengine.config.requirements import expect_fitting_model
from sslengine.config.sections import read
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.data.pixel_format import (
    MODE_CHANNELS,
    PixelFormat,
    output_channels,
    probe,
    tells_something,
)
from sslengine.data.sources.base import build_sources
from sslengine.data.sources.labels import known_classes, standard_labels
from sslengine.distributed import data_parallel, sharding
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, DataError
from sslengine.losses.options import LossOptions
from sslengine.methods import foreign
from sslengine.methods.base import callbacks, expect_known_callbacks
from sslengine.models.build import (
    build_model,
    freeze_parameters,
    trunk_with_heads,
)
from sslengine.models.frozen import FrozenNetwork, Preservation
from sslengine.models.model import Model
from sslengine.models.momentum import start_as
from sslengine.models.options import ModelOptions
from sslengine.models.parts import compile_forward, heads_of, parts_of
from sslengine.models.sync_batchnorm import synchronise
from sslengine.models.view_trunk import lend
from sslengine.models.weights.load import init_method, init_weights, other_classes
from sslengine.optim.learner import LOSS, trains
from sslengine.precision import Precision, build_precision, move
from sslengine.registry import LOSSES, TRAIN_STEPS, component_key

log = logging.getLogger("sslengine")

_SHARDED = f"config.TRAINER.TASK_NAME: {SHARDED_TASK}"


def classes_of_train(config: DictConfig) -> list[Classes]:
    """Find TRAIN's classes, if it has labels, for a run that reads TEST alone."""
    options = read(config, DataOptions).TRAIN
    if options.LABEL_TYPE != "standard" or not (options.DATA_SOURCES and options.LABEL_SOURCES):
        return []
    try:
        sources = build_sources(options, "TRAIN")
        labels = standard_labels(options, "TRAIN", sources)
    except DataError as error:
        log.warning("TRAIN's classes are not known, TEST's are numbered by themselves: %s", error)
        return []
    return known_classes(labels, sources)


@dataclass(frozen=True)
class FirstImages:
    channels: int  # behind the TRANSFORMS; 0: there are no images
    # Of the files, split by split, where IMAGE_MODE does not say it.
    formats: dict[str, PixelFormat]


def look_at_data(config: DictConfig) -> FirstImages:
    """Read the first images of the splits of a run; raise ConfigError if its trunk takes others."""
    data, run = read(config, DataOptions), read(config, RunOptions)
    given = read(config, ModelOptions).INPUT_CHANNELS
    found: dict[str, int] = {"the trunk": given} if isinstance(given, int) else {}
    formats: dict[str, PixelFormat] = {}
    splits = [*["TRAIN"] * (not run.TEST_ONLY), *["TEST"] * (run.TEST_MODEL or run.TEST_ONLY)]
    for split in splits:
        options = getattr(data, split)
        if not options.DATA_SOURCES:
            continue
        stored = data.HOLD_OUT.read_as(split)
        seen = probe(options, stored) if tells_something(options) else None
        if seen is not None and options.IMAGE_MODE == "stored":
            formats[split] = seen.format
        found[f"the images of config.DATA.{split}"] = output_channels(options, split, seen)
    if len(set(found.values())) > 1:
        raise ConfigError(
            "config.MODEL.INPUT_CHANNELS: "
            + ", ".join(f"{what} {count}" for what, count in found.items())
            + ". The trunk and all images, behind their TRANSFORMS, need the same number; auto "
            "takes that of the images."
        )
    return FirstImages(next(iter(found.values()), 0), formats)


def input_channels(config: DictConfig) -> int:
    """Return INPUT_CHANNELS, or the channels that the data has where it is still auto."""
    given, data = read(config, ModelOptions).INPUT_CHANNELS, read(config, DataOptions)
    if isinstance(given, int):
        return given
    split = "TRAIN" if data.TRAIN.DATA_SOURCES else "TEST"
    options = getattr(data, split)
    if not options.DATA_SOURCES:
        return 3
    with torch.device("cpu"):  # the model may be built for a look at its shapes alone
        seen = None if options.IMAGE_MODE in MODE_CHANNELS else probe(options, split)
        return output_channels(options, split, seen)


def build_base_model(config: DictConfig, device: torch.device) -> nn.Module:
    """Build the model with random weights, on the device. The caller has set the seed."""
    options = read(config, ModelOptions)
    options.INPUT_CHANNELS = input_channels(config)
    ranks_per_node = read(config, DistributedOptions).NUM_PROC_PER_NODE
    model = build_model(options, ranks_per_node, run_facts(config).views_per_image)
    return place_model(config, model, device)


def place_model(config: DictConfig, model: nn.Module, device: torch.device) -> nn.Module:
    """Bring the model to the device, its filters in the order of MODEL.CHANNELS_LAST."""
    last, sharded = read(config, ModelOptions).CHANNELS_LAST, shards(config)
    if device.type == "cuda" and not sharded if last == "auto" else last:
        # The filters decide: a convolution gives its output, and thus all that follows, their form.
        model = model.to(memory_format=torch.channels_last)
    # What is to be cut may be too large for a device.
    return model if sharded else move(model, device)


def load_initial_weights(
    config: DictConfig, model: nn.Module, loss: nn.Module, class_names: Sequence[Sequence[str]] = ()
) -> None:
    """Load the weights that MODEL.WEIGHTS_INIT or MODEL.TRUNK names; warn of other classes."""
    options = read(config, ModelOptions)
    if options.WEIGHTS_INIT.PARAMS_FILE or options.starts_from_library():
        loaded = init_weights(model, options)
        if options.WEIGHTS_INIT.PARAMS_FILE and owns_network(type(loss)):
            init_method(loss, options)
        other = other_classes(loaded.classes, class_names)
        if other and loaded.heads:
            log.warning("config.MODEL.WEIGHTS_INIT: %s.", other)
    elif options.LORA.RANK or options.PRESERVE.WEIGHT:
        key = "LORA.RANK" if options.LORA.RANK else "PRESERVE.WEIGHT"
        raise ConfigError(
            f"config.MODEL.{key}: the trunk begins with random weights, and would keep them. Set "
            f"config.MODEL.WEIGHTS_INIT.PARAMS_FILE, or `pretrained` of the trunk."
        )


def build_loss(
    config: DictConfig,
    model: nn.Module,
    num_train_samples: int,
    device: torch.device,
    batch_sizes: Iterable[int] = (),
) -> nn.Module:
    """Build a loss: one with options from (options, run facts), one of torch.nn from arguments; one
    that owns its network gets the model's trunk."""
    name = read(config, LossOptions).name
    if not name:  # the model gives its losses itself
        return nn.Module()
    settings = read(config, ModelOptions)
    facts = replace(
        run_facts(config).with_data(num_train_samples, batch_sizes),
        resumes=has_checkpoints(config),
        starts_trained=settings.starts_from_weights(),
    )
    chosen = LOSSES.get(name, "config.LOSS.name")
    options = getattr(read(config, LossOptions), component_key(name))
    given: dict[str, Any] = {}
    if "run" in inspect.signature(chosen).parameters:
        given["run"] = facts
    if owns_network(chosen):
        given["trunk"] = lend(trunk_with_heads(model, "a method with a trunk"), settings)
    loss: Any
    if isinstance(options, dict):
        loss = foreign.build(chosen, options, component_key(name), given)
    elif owns_network(chosen):
        loss = chosen(options, **given)
    else:
        loss = chosen(options, facts)
    if settings.PRESERVE.WEIGHT:
        loss.preservation = Preservation(settings.PRESERVE.WEIGHT)
    ranks_per_node = read(config, DistributedOptions).NUM_PROC_PER_NODE
    return move(synchronise(loss, settings.SYNC_BN_CONFIG, ranks_per_node), device)


def build_train_step(config: DictConfig) -> Any:
    """Build the train step: a function of the task, or an object made with options."""
    trainer = read(config, TrainerOptions)
    chosen = TRAIN_STEPS.get(trainer.TRAIN_STEP_NAME, "config.TRAINER.TRAIN_STEP_NAME")
    given = getattr(trainer, component_key(trainer.TRAIN_STEP_NAME))
    if not isinstance(given, dict):
        return chosen(given)
    if isinstance(chosen, type):
        return chosen(**given)
    return partial(chosen, **given) if given else chosen


def shards(config: DictConfig) -> bool:
    """Tell whether the model is sharded. One process has nothing to share: it trains the plain
    model by the same config."""
    return is_sharded(config) and world_size() > 1


def compile_model(config: DictConfig, model: nn.Module) -> None:
    """Compile the model as MODEL.COMPILE says, before copies are made: they are compiled as well.

    Of a custom model compile the submodules: its own forward may draw masks, which are then those
    of a run that is not compiled.
    """
    options = read(config, ModelOptions)
    if options.COMPILE.USE_COMPILE:
        if not isinstance(model, Model):
            parts = list(model.children()) or [model]
        elif shards(config):
            # What gathers the weights of a unit runs before its forward, and is not compiled.
            parts = [part for part in parts_of(model) if part is not model.trunk]
        else:
            parts = [model.trunk, *heads_of(model)]
        for part in parts:
            compile_forward(part, options.COMPILE)


def shard_model(
    config: DictConfig, model: nn.Module, loss: nn.Module, device: torch.device
) -> None:
    """Cut the model, and the loss with its copies of it; bring the shares to the device."""
    options = read(config, ModelOptions).FSDP_CONFIG
    policy = sharding.Policy(
        getattr(torch, options.compute()), torch.float32 if options.fp32_reduce_scatter else None
    )
    mesh = sharding.mesh_of(device)
    # The copies of the model are teachers, momentum encoders, frozen networks.
    for each in (trunk_with_heads(model, _SHARDED), *_models_in(loss)):
        sharding.shard(each, parts_of(each, options.AUTO_WRAP_THRESHOLD), mesh, policy)
        each.to(device)  # buffers; parameters are there
    if trains(loss):
        sharding.shard_method(loss, mesh, policy.reduce)


def attach_again(config: DictConfig, loss: nn.Module, model: nn.Module) -> None:
    """Let copies start as the model does. A sharded one cannot be copied: it is written over."""
    kept = [each.network for each in loss.modules() if isinstance(each, FrozenNetwork)]
    copies = [each for each in _models_in(loss) if not (each in kept or trains(each))]
    if copies and sharding.is_sharded(model):
        for each in copies:
            start_as(each, model)  # an EMA's other parts follow in its start_sharded
        for part in callbacks(loss, "start_sharded"):
            part(model)
    else:
        attach(config, loss, model)


def _models_in(loss: nn.Module) -> list[Model]:
    """List the copies of the model that a loss has: a borrowed trunk has no parameters."""
    found = [each for each in loss.modules() if isinstance(each, Model)]
    return [each for each in found if next(each.parameters(), None) is not None]


def attach(config: DictConfig, loss: nn.Module, model: nn.Module) -> None:
    """Let the method and its parts copy what they need of the model; freeze what has a name now."""
    expect_known_callbacks(loss)
    expect_fitting_model(config, loss, model)
    for part in callbacks(loss, "attach"):
        part(model)
    freeze_parameters(loss, read(config, ModelOptions).NON_TRAINABLE_PARAMS, f"{LOSS}.")


def build_run_precision(config: DictConfig, device: torch.device) -> Precision:
    model = read(config, ModelOptions)
    choice, where = read(config, MachineOptions).PRECISION, "config.MACHINE.PRECISION"
    if not choice:
        choice, where = precision_of_amp(model), "config.MODEL.AMP_PARAMS"
    return build_precision(choice, device, vars(model.AMP_PARAMS.GRAD_SCALER), where)


@dataclass(frozen=True, eq=False)
class Reduction:
    """What ranks exchange in addition to what DDP does."""

    by_hand: bool  # gradients, when the backward is done
    broadcasts_buffers: bool  # rank 0's are every rank's
    broadcasts_by_hand: bool  # before each forward


def build_reduction(config: DictConfig, train_step: Any) -> Reduction:
    """Reduce by hand by request, or where a step makes several backward passes: DDP's hooks follow
    one."""
    options, several = read(config, DistributedOptions), getattr(train_step, "reduces_by_hand", 0)
    sharded = shards(config)
    if sharded and several:
        raise ConfigError(
            f"config.TRAINER.TRAIN_STEP_NAME: {read(config, TrainerOptions).TRAIN_STEP_NAME} "
            f"makes several backward passes, which {SHARDED_TASK} does not go with."
        )
    asked = options.MANUAL_GRADIENT_REDUCTION or bool(several)
    by_hand = world_size() > 1 and not sharded and asked
    mode = options.BROADCAST_BUFFERS
    at_forward = mode in (True, "forward_pass")
    broadcasts = mode not in (False, "disabled")
    return Reduction(by_hand, broadcasts, at_forward and (by_hand or sharded))


def wrap_model(
    config: DictConfig,
    model: nn.Module,
    loss: nn.Module,
    device: torch.device,
    compression: Any = None,
) -> nn.Module:
    """Wrap model and loss in DDP. A sharded model needs nothing around it."""
    if shards(config):
        return model
    options = read(config, DistributedOptions)
    return data_parallel.wrap(
        model,
        loss,
        device,
        bucket_cap_mb=read(config, DataOptions).DDP_BUCKET_CAP_MB,
        find_unused_parameters=options.FIND_UNUSED_PARAMETERS,
        broadcast_buffers=options.BROADCAST_BUFFERS in (True, "forward_pass"),
        compression=compression,
    )
