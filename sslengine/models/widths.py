"""Replace `auto` in the arguments of heads by the widths of the features that they get.

    HEAD: {PARAMS: [["mlp", {"dims": ["auto", 128]}]]}

As the first entry of a list, `auto` is the number of values of the feature; as an argument whose
name starts with `in_` (`in_channels`, `in_dim`) it is the number of channels of the feature, or the
width of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sslengine.config.facts import AUTO, auto_places
from sslengine.errors import ConfigError
from sslengine.models.heads.build import build_module
from sslengine.models.model import build_pooling
from sslengine.models.options import ModelOptions
from sslengine.models.routing import plan_routes
from sslengine.models.trunks.base import Trunk, single_features
from sslengine.models.weights.fit import RGB

WHERE = "config.MODEL.HEAD.PARAMS"
# The sides of images for a trunk that takes images of any size.
SIDES = (224, 448)


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
            f"{WHERE}: {AUTO} cannot be resolved: {problem}\n  Give the width as a number."
        ) from problem
    first, *others = found.values()
    if any(other != first for other in others):
        raise ConfigError(
            f"{WHERE}: {AUTO} depends on the size of the images: {first} with "
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
                return [_channels(each.shape[1:]) for each in network(images)]
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
            given = _through(params[head], given, f"{WHERE}.{head}")
    return params


def _copied(value: Any) -> Any:
    """Copy nested lists and dicts; unlike deepcopy, an object that occurs twice gives two."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, (list, tuple)) else value


def _channels(shape: torch.Size) -> int:
    """Return the channels of a map C x H x W, or of tokens T x C."""
    return shape[-1] if len(shape) == 2 else shape[0]


def _modules(entry: Any) -> list[Any]:
    """Return the modules of a head: an entry of HEAD.PARAMS is a module, or a list of them."""
    nested = not isinstance(entry, str) and not isinstance(entry[0], str)
    return entry if nested else [entry]


def _through(entry: Any, given: Tensor, where: str) -> Tensor:
    """Fill in the widths of a head and return its output."""
    for module in _modules(entry):
        for arguments, key in auto_places([module]):
            shape = given.shape[1:]
            arguments[key] = _channels(shape) if isinstance(key, str) else math.prod(shape)
        output = build_module(module, where).eval()(given)
        given = output if isinstance(output, Tensor) else output[0]
    return given
