"""Build the model of `config.MODEL`. The caller has seeded the random number generator.

Usually the model is a trunk with heads. A custom model is a module registered by name:

    @register_model("my_model", options=MyOptions)
    class MyModel(nn.Module):
        def __init__(self, options: MyOptions, model: ModelOptions): ...

`model` is the whole section MODEL: a custom model may call `build_trunk(model)`. Without an
options class, `__init__` gets the keys of the model's section as keyword arguments, and `model`
if it has an argument of that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from sslengine.config.facts import auto_places, class_places
from sslengine.errors import ConfigError, nearest
from sslengine.models.heads.build import build_heads
from sslengine.models.lora import add_lora
from sslengine.models.model import Model, build_pooling
from sslengine.models.options import FeatureEvalOptions, ModelOptions
from sslengine.models.sync_batchnorm import synchronise
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.tokens import MASK, add_mask_token
from sslengine.models.widths import fill_in_widths
from sslengine.registry import MODELS, TRUNKS, component_key, register_model

WHERE = "config.MODEL.BASE_MODEL_NAME"


def build_model(options: ModelOptions, ranks_per_node: int = 1, views: int = 1) -> nn.Module:
    """Build the model on the CPU with initial weights. Collective if batch norms are synchronised.

    views: how many views of each image a training batch has.
    """
    model = _chosen_model(options)
    if options.VIEWS_APART:
        trunk_with_heads(model, "config.MODEL.VIEWS_APART").views_apart = views
    _freeze(model, options.FEATURE_EVAL_SETTINGS)
    freeze_parameters(model, options.NON_TRAINABLE_PARAMS)
    synchronise(model, options.SYNC_BN_CONFIG, ranks_per_node)
    return model


@register_model("multi_input_output_model")
def build_trunk_with_heads(model: ModelOptions) -> Model:
    return Model(
        trunk=build_trunk(model),
        heads=build_heads(replace(model.HEAD, PARAMS=known_heads(model))),
        routes=model.routes(),
        pooling=build_pooling(model.FEATURE_EVAL_SETTINGS),
        flip_channels=model.INPUT_TYPE == "bgr",
        single_pass_every_crop=model.SINGLE_PASS_EVERY_CROP,
    )


def known_heads(options: ModelOptions) -> list[Any]:
    """Return HEAD.PARAMS with each `auto` replaced by a number; none if no head gets a feature."""
    if options.FEATURE_EVAL_SETTINGS.EXTRACT_TRUNK_FEATURES_ONLY:
        return []
    params: list[Any] = options.HEAD.PARAMS
    if next(class_places(params), None) is not None:
        raise ConfigError(
            "config.MODEL.HEAD.PARAMS: the number of classes is `auto`; the command fills it in "
            "from the labels of DATA.TRAIN. Here give the number."
        )
    if next(auto_places(params), None) is None:
        return params
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
        return fill_in_widths(options, build_trunk(options).eval())


def _chosen_model(options: ModelOptions) -> nn.Module:
    name = options.BASE_MODEL_NAME
    chosen = MODELS.get(name, WHERE)
    given: Any = getattr(options, component_key(name), {})
    if isinstance(given, dict):
        takes_all = "model" in inspect.signature(chosen).parameters
        given = {**given, **({"model": options} if takes_all else {})}
        return cast(nn.Module, chosen(**given))
    return cast(nn.Module, chosen(given, options))


def trunk_with_heads(model: nn.Module, purpose: str) -> Model:
    """Return the model if it is a trunk with heads; raise an error that names `purpose` if not."""
    if not isinstance(model, Model):
        raise ConfigError(
            f"{WHERE}: {purpose} needs a trunk with heads; {type(model).__name__} is a custom "
            f"model. Set it to multi_input_output_model, and config.MODEL.TRUNK to its trunk."
        )
    return model


def build_trunk(options: ModelOptions) -> Trunk:
    """Build the trunk TRUNK.NAME from the section of its options class."""
    where = "config.MODEL.TRUNK"
    name = options.TRUNK.NAME
    cls, options_class = TRUNKS.get(name, f"{where}.NAME"), TRUNKS.options(name)
    channels = _channels(cls, name, options.in_chans())
    make = partial(cls, **channels)
    trunk: Trunk
    if options_class is None:
        trunk = make()
    elif isinstance(options.TRUNK, options_class):
        trunk = make(options.TRUNK)  # a trunk that reads several sections
    else:
        section = options.TRUNK.section_of(options_class)
        if section is None:
            raise ConfigError(
                f"{where}: the options of the trunk {name!r}, {options_class.__name__}, are not a "
                f'section of the config; put @section("MODEL.TRUNK.<its name>") above that class.'
            )
        trunk = make(section)
    trunk.in_chans = channels.get("in_chans")
    if options.LORA.RANK:
        add_lora(trunk, options.LORA)
    _add_inputs(trunk, options)
    if options.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING:
        trunk.checkpoint_activations()
    return trunk


def _add_inputs(trunk: Trunk, options: ModelOptions) -> None:
    asked = {key for route in options.routes() for key in route.additional_keys}
    if MASK in asked and MASK not in trunk.extra_inputs:
        add_mask_token(trunk)


def _channels(cls: type, name: str, in_chans: int) -> dict[str, int]:
    if "in_chans" in inspect.signature(cls).parameters:
        return {"in_chans": in_chans}
    if in_chans != 3:
        raise ConfigError(
            f"config.MODEL.INPUT_CHANNELS: images have {in_chans} channels, and the trunk {name!r} "
            f"takes 3: its __init__ has no argument `in_chans`."
        )
    return {}


def _freeze(model: nn.Module, settings: FeatureEvalOptions) -> None:
    if settings.EVAL_MODE_ON and settings.FREEZE_TRUNK_AND_HEAD:
        trunk_with_heads(model, "FREEZE_TRUNK_AND_HEAD").freeze("trunk", "heads")
    elif settings.EVAL_MODE_ON and settings.FREEZE_TRUNK_ONLY:
        trunk_with_heads(model, "FREEZE_TRUNK_ONLY").freeze("trunk")


def freeze_parameters(module: nn.Module, names: Sequence[str], prefix: str = "") -> None:
    """Freeze the parameters with these names (NON_TRAINABLE_PARAMS).

    prefix: "loss." if the module is the loss. Names that start with "loss." belong to the loss,
    all others to the model. DDP's prefix `module.` is removed.
    """
    parameters = {f"{prefix}{name}": each for name, each in module.named_parameters()}
    for index, name in enumerate(names):
        if name.startswith("loss.") != bool(prefix):
            continue
        parameter = parameters.get(name.removeprefix("module."))
        if parameter is None:
            hint = nearest(name, parameters)
            raise ConfigError(
                f"config.MODEL.NON_TRAINABLE_PARAMS.{index}: no parameter {name!r}. {hint}".rstrip()
            )
        parameter.requires_grad_(False)
