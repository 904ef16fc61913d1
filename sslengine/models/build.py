"""`config.MODEL` becomes a model. The caller has seeded the generator."""

from __future__ import annotations

from torch import nn

from sslengine.errors import ConfigError, nearest
from sslengine.models.features import build_pooling
from sslengine.models.heads.build import build_heads
from sslengine.models.model import Model
from sslengine.models.options import FeatureEvalOptions, ModelOptions
from sslengine.models.sync_batchnorm import synchronise
from sslengine.models.trunks.base import Trunk
from sslengine.registry import TRUNKS


def build_model(options: ModelOptions, ranks_per_node: int = 1) -> Model:
    """On the CPU, with initial weights. Collective where batch norms are synchronised."""
    settings = options.FEATURE_EVAL_SETTINGS
    model = Model(
        trunk=build_trunk(options),
        heads=build_heads(options.HEAD),
        routes=options.routes(),
        pooling=build_pooling(settings),
        flip_channels=options.INPUT_TYPE == "bgr",
        single_pass_every_crop=options.SINGLE_PASS_EVERY_CROP,
    )
    _freeze(model, settings)
    _freeze_parameters(model, options.NON_TRAINABLE_PARAMS)
    synchronise(model, options.SYNC_BN_CONFIG, ranks_per_node)
    return model


def build_trunk(options: ModelOptions) -> Trunk:
    """The trunk that TRUNK.NAME names, from the section of its options class."""
    where = "config.MODEL.TRUNK"
    name = options.TRUNK.NAME
    cls, options_class = TRUNKS.get(name, f"{where}.NAME"), TRUNKS.options(name)
    if options_class is None:
        trunk = cls()
    elif isinstance(options.TRUNK, options_class):
        trunk = cls(options.TRUNK)  # it reads several sections
    else:
        sections = [each for each in vars(options.TRUNK).values() if type(each) is options_class]
        if not sections:
            raise ConfigError(
                f"{where}: the trunk {name!r} brings {options_class.__name__}, which is no section "
                f'of the config; put @section("MODEL.TRUNK.<its name>") above that class.'
            )
        trunk = cls(sections[0])
    if not isinstance(trunk, Trunk):
        raise ConfigError(
            f"{where}.NAME: {name!r} is no trunk: subclass sslengine.models.trunks.base.Trunk."
        )
    if options.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING:
        trunk.checkpoint_activations(
            options.ACTIVATION_CHECKPOINTING.NUM_ACTIVATION_CHECKPOINTING_SPLITS
        )
    return trunk


def _freeze(model: Model, settings: FeatureEvalOptions) -> None:
    if settings.EVAL_MODE_ON and settings.FREEZE_TRUNK_AND_HEAD:
        model.freeze("trunk", "heads")
    elif settings.EVAL_MODE_ON and settings.FREEZE_TRUNK_ONLY:
        model.freeze("trunk")


def _freeze_parameters(model: nn.Module, names: list[str]) -> None:
    parameters = dict(model.named_parameters())
    for index, name in enumerate(names):
        parameter = parameters.get(name.removeprefix("module."))
        if parameter is None:
            hint = nearest(name, parameters)
            raise ConfigError(
                f"config.MODEL.NON_TRAINABLE_PARAMS.{index}: no parameter {name!r}. {hint}".rstrip()
            )
        parameter.requires_grad_(False)
