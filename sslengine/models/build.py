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
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from sslengine.config.facts import AUTO, auto_places, class_places
from sslengine.errors import ConfigError, UnknownNameError, nearest
from sslengine.models.lora import add_lora
from sslengine.models.model import Model, build_pooling
from sslengine.models.options import FeatureEvalOptions, HeadOptions, ModelOptions
from sslengine.models.routing import HeadSpec, head_specs, plan_routes
from sslengine.models.sync_batchnorm import synchronise
from sslengine.models.trunks.base import Trunk, single_features
from sslengine.models.trunks.tokens import take_input
from sslengine.models.weights.fit import RGB
from sslengine.registry import HEADS, MODELS, TRUNKS, component_key, register_model

WHERE = "config.MODEL.BASE_MODEL_NAME"
HEADS_AT = "config.MODEL.HEAD.PARAMS"
# The sides of images for a trunk that takes images of any size.
SIDES = (224, 448)


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
            f"{HEADS_AT}: the number of classes is `auto`; the command fills it in "
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
    for route in options.routes():
        for key in route.additional_keys:
            take_input(trunk, key, f"{route.where}.additional_keys")
    if options.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING:
        trunk.checkpoint_activations()
    return trunk


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


# ---- heads


def build_heads(options: HeadOptions) -> nn.ModuleList:
    """Build a module for each entry of PARAMS; an entry that is a list of modules is a chain."""
    heads = nn.ModuleList(
        _head(spec, f"{HEADS_AT}.{index}")
        for index, spec in enumerate(head_specs(options.PARAMS, HEADS_AT))
    )
    for module in heads.modules():
        if isinstance(module, _BatchNorm):
            module.eps, module.momentum = options.BATCHNORM_EPS, options.BATCHNORM_MOMENTUM
        elif isinstance(module, nn.Linear):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(options.PARAMS_MULTIPLIER)
    return heads


def _head(spec: HeadSpec, where: str) -> nn.Module:
    modules = [_module(name, arguments, where) for name, arguments in spec.modules]
    return nn.Sequential(*modules) if spec.nested else modules[0]


def build_module(entry: Any, where: str) -> nn.Module:
    """Build a single module of PARAMS: `["name", {arguments}]`."""
    (spec,) = head_specs([entry], where)
    return _head(spec, where)


def _module(name: str, arguments: dict[str, Any], where: str) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            made: nn.Module = HEADS.make(name, arguments, where)
    except UnknownNameError:
        raise  # it already names the key
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error
    except RuntimeError as error:
        raise ConfigError(f"{where}.{name}: {arguments}: {error}") from error
    for path, parameter in made.named_parameters():
        if not is_lazy(parameter) and 0 in parameter.shape:
            raise ConfigError(
                f"{where}.{name}: a width in {arguments} is 0: {path} has the shape "
                f"{tuple(parameter.shape)}."
            )
    return made


# ---- `auto` in the arguments of heads
#
#     HEAD: {PARAMS: [["mlp", {"dims": ["auto", 128]}]]}
#
# As the first entry of a list, `auto` is the number of values of the feature; as an argument whose
# name starts with `in_` (`in_channels`, `in_dim`) it is the number of channels of the feature, or
# the width of its tokens.


def fill_in_widths(options: ModelOptions, trunk: Trunk) -> list[Any]:
    """Return HEAD.PARAMS without `auto`. The trunk is on the meta device, in eval mode."""
    found: dict[int, list[Any]] = {}
    problem: Exception | None = None
    for side in dict.fromkeys((*_fixed_sides(trunk), *SIDES)):
        rows = 2 * math.lcm(*_towers(options.HEAD.PARAMS))
        images = torch.empty(rows, options.in_chans(), side, side, device="meta")
        try:
            found[side] = _filled(options, trunk, images)
        except Exception as error:  # the trunk does not take images of this size
            problem = problem or error
    if not found:
        raise ConfigError(
            f"{HEADS_AT}: {AUTO} cannot be resolved: {problem}\n  Give the width as a number."
        ) from problem
    first, *others = found.values()
    if any(other != first for other in others):
        raise ConfigError(
            f"{HEADS_AT}: {AUTO} depends on the size of the images: {first} with "
            f"{min(found)} x {min(found)} pixels, {others[-1]} with {max(found)} x {max(found)}. "
            f"Give the width as a number, or pool the feature."
        )
    return first


@torch.no_grad()
def output_widths(network: Callable[[Tensor], Any], trunk: Trunk) -> list[int]:
    """Return the channels of a network's outputs, in eval mode. trunk: what takes its images."""
    training, problem = trunk.training, None
    device = next(trunk.parameters()).device
    trunk.eval()
    try:
        for side in dict.fromkeys((*_fixed_sides(trunk), *SIDES)):
            images = torch.zeros(2, trunk.in_chans or RGB, side, side, device=device)
            try:
                return [_count_channels(each.shape[1:]) for each in network(images)]
            except ConfigError as error:  # it does not take images of this size
                problem = error
    finally:
        trunk.train(training)
    raise ConfigError(f"{type(trunk).__name__}: its outputs are not known: {problem}") from problem


def _towers(params: Any) -> Iterator[int]:
    """Yield how many rows of one image a head joins."""
    if isinstance(params, dict):
        yield params.get("num_towers", 1)
    elif not isinstance(params, str):
        for each in params:
            yield from _towers(each)


def _fixed_sides(trunk: Trunk) -> Iterator[int]:
    """Yield the image size of a network that is made for one size."""
    for owner, name in ((getattr(trunk, "patch_embed", None), "img_size"), (trunk, "image_size")):
        side = getattr(owner, name, None)
        if isinstance(side, int):
            yield side
        elif side:
            yield side[0]


def _filled(options: ModelOptions, trunk: Trunk, images: Tensor) -> list[Any]:
    params: list[Any] = _copied(options.HEAD.PARAMS)
    settings = options.FEATURE_EVAL_SETTINGS
    judged = [] if settings.EXTRACT_TRUNK_FEATURES_ONLY else settings.LINEAR_EVAL_FEAT_POOL_OPS_MAP
    pooling = build_pooling(settings) if judged else None
    routes = plan_routes(
        params, judged, options.MULTI_INPUT_HEAD_MAPPING, trunk_only=False, where="config.MODEL."
    )
    for route in routes:
        trunk.check_features(single_features(route.features), route.where)
        features = trunk(images, route.features)
        features = features if pooling is None else pooling(features)
        if len(features) == 1 and not route.chained:
            features = features * len(route.heads)
        given = features[0]
        for position, head in enumerate(route.heads):
            if not route.chained:
                given = features[position]
            given = _through(params[head], given, f"{HEADS_AT}.{head}")
    return params


def _copied(value: Any) -> Any:
    """Copy nested lists and dicts; unlike deepcopy, an object that occurs twice gives two."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, (list, tuple)) else value


def _count_channels(shape: torch.Size) -> int:
    """Return the channels of a map C x H x W, or of tokens T x C."""
    return shape[-1] if len(shape) == 2 else shape[0]


def _through(entry: Any, given: Tensor, where: str) -> Tensor:
    """Fill in the widths of a head, a module or a list of them, and return its output."""
    nested = not isinstance(entry, str) and not isinstance(entry[0], str)
    for module in entry if nested else [entry]:
        for arguments, key in auto_places([module]):
            shape = given.shape[1:]
            arguments[key] = _count_channels(shape) if isinstance(key, str) else math.prod(shape)
        output = build_module(module, where).eval()(given)
        given = output if isinstance(output, Tensor) else output[0]
    return given
