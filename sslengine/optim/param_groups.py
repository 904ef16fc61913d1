"""Parameter groups: which parameters share a learning rate and a weight decay.

`OPTIMIZER.param_group_constructor` chooses a constructor `(model, options) -> list of groups`.
A group is a dict for torch's optimizers, with `params` and any of these keys:

    name           for errors and checkpoints
    is_head        use the schedules of heads, not the trunk's
    lr_scale       a factor on the learning rate
    weight_decay   constant; without this key it is OPTIMIZER.weight_decay or its schedule, times
                   weight_decay_scale

Every trainable parameter is in exactly one group, frozen parameters are in none. Factors on the
rates of parameters whose names match a pattern, `OPTIMIZER.multipliers` and those of a method,
then split groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from sslengine.errors import ConfigError, listing, nearest
from sslengine.optim.layer_depth import layer_depth
from sslengine.optim.learner import Learner, Trainable, trainable
from sslengine.optim.options import MultiplierOptions, OptimizerSettings
from sslengine.registry import PARAM_GROUPS, register_param_groups

Group = dict[str, Any]
Rule = Callable[[Trainable], bool]

_HEAD_INDEX = re.compile(r"heads\.(\d+)\.")


def build_param_groups(model: nn.Module, options: OptimizerSettings) -> list[Group]:
    """Build the groups of a model with `trunk` and `heads`, or of a Learner."""
    constructor = PARAM_GROUPS.get(
        options.param_group_constructor, "OPTIMIZER.param_group_constructor"
    )
    groups = [group for group in constructor(model, options) if group["params"]]
    if not groups:
        raise ConfigError("OPTIMIZER: nothing to train: every parameter of the model is frozen.")
    if isinstance(model, Learner):
        groups = split_by_multipliers(groups, multipliers_of(model.loss))
    return split_by_multipliers(groups, chosen_multipliers(model, options.multiplier_options()))


def decay_by_layer(options: OptimizerSettings, regularize_bn: bool) -> Rule:
    """Return the rule of `regularize_bn` and `regularize_bias`, by the kind of layer."""

    def has_decay(each: Trainable) -> bool:
        if _is_exempt(each, options):
            return False
        if each.is_in_norm and not regularize_bn:
            return False
        return options.regularize_bias or not each.is_bias

    return has_decay


def decay_by_name(options: OptimizerSettings) -> Rule:
    """Return DINO's rule: no weight decay on biases, norms and names that contain `norm`."""

    def has_decay(each: Trainable) -> bool:
        is_norm = each.is_in_norm or "norm" in each.name
        return not (each.is_bias or is_norm or _is_exempt(each, options))

    return has_decay


def _is_exempt(each: Trainable, options: OptimizerSettings) -> bool:
    return any(part in each.name for part in options.non_regularized_parameters)


class _Collector:
    """Collects parameters into groups by name."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def add(self, each: Trainable, name: str, has_decay: bool, **settings: Any) -> None:
        if not has_decay:
            name, settings = f"{name} without decay", {**settings, "weight_decay": 0.0}
        new: Group = {"params": [], "name": name, "is_head": each.is_in_head, **settings}
        self._groups.setdefault(name, new)["params"].append(each.parameter)

    def groups(self) -> list[Group]:
        return list(self._groups.values())


def _trunk_and_heads(model: nn.Module, has_decay: Rule) -> list[Group]:
    collector = _Collector()
    for each in trainable(model):
        collector.add(each, "heads" if each.is_in_head else "trunk", has_decay(each))
    return collector.groups()


@register_param_groups("default")
def default(model: nn.Module, options: OptimizerSettings) -> list[Group]:
    """Trunk and heads, each with and without weight decay."""
    if options.construct_single_param_group_only:
        return [{"params": [each.parameter for each in trainable(model)], "name": "model"}]
    return _trunk_and_heads(model, decay_by_layer(options, options.regularize_bn))


@register_param_groups("dino")
def no_decay_by_name(model: nn.Module, options: OptimizerSettings) -> list[Group]:
    """Trunk and heads, with DINO's rule for weight decay: see decay_by_name."""
    return _trunk_and_heads(model, decay_by_name(options))


@register_param_groups("lr_decay")
def lr_decay(model: nn.Module, options: OptimizerSettings) -> list[Group]:
    """Learning rates that decrease with the distance from the heads: decay ** distance.

    Weight decay is that of `default`; for a ViT it is DINO's rule, as in VISSL.
    """
    depth = layer_depth(model)
    by_layer = decay_by_layer(options, options.regularize_bn)
    has_decay = decay_by_name(options) if depth.is_vit else by_layer
    collector, by_depth = _Collector(), options.layer_wise_lr_decay
    for each in trainable(model):
        layer = depth.find(each.name)
        if layer < depth.heads and any(part in each.name for part in by_depth.as_last):
            layer = depth.heads - 1
        scale = by_depth.decay ** (depth.heads - layer)
        name = "heads" if each.is_in_head else f"layer {layer}"
        collector.add(each, name, has_decay(each), lr_scale=scale)
    return collector.groups()


@register_param_groups("linear_eval_heads")
def linear_eval_heads(model: nn.Module, options: OptimizerSettings) -> list[Group]:
    """Parallel heads, each with a separate learning rate and weight decay."""
    entries = options.linear_heads()
    collector = _Collector()
    for each in trainable(model):
        index = _head_index(each.name, len(entries))
        entry = entries[index]
        bn = options.regularize_bn if entry.regularize_bn is None else entry.regularize_bn
        settings: dict[str, Any] = {"lr_scale": entry.lr}
        if entry.weight_decay is not None:
            settings["weight_decay"] = entry.weight_decay
        collector.add(each, f"head {index}", decay_by_layer(options, bn)(each), **settings)
    return collector.groups()


def _head_index(name: str, num_entries: int) -> int:
    match = _HEAD_INDEX.match(name)
    if match is None:
        raise ConfigError(
            f"OPTIMIZER.param_group_constructor: linear_eval_heads trains only heads, but {name} "
            f"is trainable: set MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY: true."
        )
    index = int(match[1])
    if index >= num_entries:
        raise ConfigError(
            f"OPTIMIZER.linear_eval_heads: {num_entries} entries, and a head number {index}."
        )
    return index


# ---- multipliers


class Multiplier(NamedTuple):
    lr: float = 1.0
    weight_decay: float = 1.0


def chosen_multipliers(
    model: nn.Module, entries: Sequence[MultiplierOptions]
) -> dict[nn.Parameter, Multiplier]:
    """Return the product of all entries that match its name, by parameter."""
    found: dict[nn.Parameter, Multiplier] = {}
    for number, each in enumerate(entries):
        where = f"config.OPTIMIZER.multipliers.{number}.match"
        for parameter in match_parameters(model, each.match, where):
            lr, weight_decay = found.get(parameter, Multiplier())
            found[parameter] = Multiplier(lr * each.lr, weight_decay * each.weight_decay)
    return found


def multipliers_of(method: nn.Module) -> dict[nn.Parameter, Multiplier]:
    """Return `method.multipliers()` by parameter; {} if there is no such method."""
    patterns: Mapping[str, Multiplier] = getattr(method, "multipliers", dict)()
    named = dict(method.named_parameters())
    found: dict[nn.Parameter, Multiplier] = {}
    for pattern, multiplier in patterns.items():
        matched = [name for name in named if fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(
                f"{type(method).__name__}.multipliers: {pattern!r} matches none of its parameters. "
                f"{nearest(pattern, named)}".rstrip()
            )
        found.update((named[name], Multiplier(*multiplier)) for name in matched)
    return found


def split_by_multipliers(
    groups: Iterable[dict[str, Any]], multipliers: Mapping[nn.Parameter, Multiplier]
) -> list[dict[str, Any]]:
    """Split each group into groups with one multiplier each."""
    parts = []
    for group in groups:
        split: dict[Multiplier, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            split.setdefault(multipliers.get(parameter, Multiplier()), []).append(parameter)
        for multiplier, parameters in split.items():
            part = {**group, "params": parameters}
            if multiplier != Multiplier():
                part["name"] = f"{group.get('name', 'unnamed')} {tuple(multiplier)}"
                part["lr_scale"] = group.get("lr_scale", 1.0) * multiplier.lr
                for key, default in (("weight_decay_scale", 1.0), ("weight_decay", None)):
                    if (value := group.get(key, default)) is not None:
                        part[key] = value * multiplier.weight_decay
            parts.append(part)
    return parts


def match_parameters(model: nn.Module, pattern: str, where: str) -> list[nn.Parameter]:
    """Return the trainable parameters that the pattern matches; ConfigError if there are none."""
    named = dict(model.named_parameters())
    found = [each for name, each in named.items() if fnmatchcase(name, pattern)]
    trained = [each for each in found if each.requires_grad]
    if trained:
        return trained
    if found:
        raise ConfigError(f"{where}: all parameters that {pattern!r} matches are frozen.")
    names = [name for name, each in named.items() if each.requires_grad]
    raise ConfigError(
        f"{where}: {pattern!r} matches no parameter. {nearest(pattern, names)}\n"
        f"  Known: {listing(names)}"
    )
