"""Read VISSL's YAML: keys that mean nothing here, default rates, keys that its files set for any.

Keys that nothing reads are in the table absent.json: they are a warning, or an error if the run
would differ from what they ask for.

VISSL's default learning rate (0.1 and the values derived from it) is for SGD. A config with another
optimizer must set a complete schedule, and so must a place that replaces a schedule by another.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine import absent
from sslengine.config.compose import COMMAND_LINE, Composition
from sslengine.config.lr_scaling import optimizers, peak_key, schedules
from sslengine.config.merged import Merged
from sslengine.config.sections import components_of, fields_of
from sslengine.errors import ConfigError
from sslengine.registry import FROM_MODELS, OPTIMIZERS, SCHEDULERS, Registry

DEFAULT_RATES: dict[str, Any] = {
    "values": [0.1, 0.01, 0.001],
    "milestones": [30, 60],
    "start_value": 0.1,
    "end_value": 0.0,
    "value": 0.1,
}
_THEIRS = ("sgd", "sgd_fsdp")
# What a model with its own step had in addition.
_OF_MODELS = (("TRAINER.TRAIN_STEP_NAME", "model_train_step"), ("LOSS.name", ""))
# Arguments of VISSL's ibot_head that dino_head has too, and those that dino_head computes one way.
_IBOT_HEAD = ("in_dim", "hidden_dim", "bottleneck_dim", "num_layers", "normalize_last_layer")
_ONE_WAY = {"act": ("gelu",), "last_norm": (None,), "norm": (None, "bn", "syncbn")}
# What VISSL's files set for any optimizer.
_SHARED = {"momentum": 0.9, "nesterov": False, "betas": [0.9, 0.999]}


# ---- keys of the table absent.json


def is_dead(node: DictConfig, key: str, path: str) -> bool:
    """Tell whether the key is in the table of dead keys, and no plugin declares it."""
    registry = components_of(node)
    if key in node or (registry is not None and key in registry):
        return False
    dead = absent.dead_key(path)
    if not fields_of(node):
        return dead is not None and dead.argument
    return bool(dead or absent.is_above_dead_keys(path))


def report_dead(merged: Merged, path: str, value: Any, origin: str) -> None:
    """Report keys without effect; warn once for each key, even if several files set it."""
    for place, each in absent.leaves(value, path):
        key = absent.dead_key(place)
        if key is None:
            if each:
                merged.problems.append(f"{place}: unknown key. Set by {origin}.")
        elif key.accepts(each):
            continue
        elif key.refused:
            expected = " or ".join(map(repr, key.accepted))
            got = "a section" if isinstance(each, Mapping) else repr(each)
            merged.problems.append(
                f"{place}: expected {expected}, got {got}: {key.instead}. Set by {origin}."
            )
        elif not any(said.startswith(f"{place} has no effect") for said in merged.warnings):
            merged.warnings.append(f"{place} has no effect: {key.instead} ({origin})")


# ---- methods that were models


def read_models(composition: Composition) -> Composition:
    """Read `MODEL.BASE_MODEL_NAME` of earlier versions as `LOSS.name`, where it is a method now."""
    given = {str(each) for each in composition.values("config.MODEL.BASE_MODEL_NAME")}
    for model in FROM_MODELS.keys() & given:
        layers = [replace(each, tree=_rename(each.tree, model)) for each in composition.layers]
        assignments = [
            replace(each, path=f"config.{path}", value=value)
            for each in composition.assignments
            for path, value in _name_now(each.path.removeprefix("config."), each.value, model)
        ]
        composition = replace(composition, layers=layers, assignments=assignments)
    return composition


def _rename(tree: dict[str, Any], model: str) -> dict[str, Any]:
    config = dict(tree.get("config") or {})
    own = {key: config.pop(key, None) or {} for key in ("MODEL", "TRAINER", "LOSS")}
    for section, keys in own.items():
        for key, value in keys.items():
            for path, each in _name_now(f"{section}.{key}", value, model):
                now, name = path.split(".")
                config.setdefault(now, {})[name] = each
    return {**tree, "config": config}


def _name_now(path: str, value: Any, model: str) -> Iterator[tuple[str, Any]]:
    """Yield the key and the value that say the same; none: of a step, or no loss."""
    before, _, option = path.partition(f"MODEL.{model}")
    if path == "MODEL.BASE_MODEL_NAME" and value == model:
        yield "LOSS.name", FROM_MODELS[model]
    elif not before and option[:1] in ("", "."):
        lower = {k.lower(): v for k, v in value.items()} if isinstance(value, Mapping) else value
        yield f"LOSS.{FROM_MODELS[model]}{option.lower()}", lower
    elif not path.startswith("TRAINER.model_train_step") and (path, value) not in _OF_MODELS:
        yield path, value


# ---- iBOT


def present_key(key: str, path: str) -> tuple[str, str]:
    """Return the name of a key here, and its path."""
    now = absent.RENAMED.get(path.removeprefix("config."), key)
    return now, f"{path.removesuffix(key)}{now}"


def read_ibot_head(merged: Merged) -> None:
    """Read VISSL's ibot_head as dino_head: one for class tokens and patches, or two."""
    entries: Any = OmegaConf.to_container(merged.config.MODEL.HEAD.PARAMS)
    for place, entry in enumerate(entries):
        match entry:
            case ["ibot_head", Mapping() as given, *_]:
                path = f"config.MODEL.HEAD.PARAMS.{place}.1"
                merged.problems.extend(
                    f"{path}.{key}: expected {' or '.join(map(str, known))}, got {given[key]!r}."
                    for key, known in _ONE_WAY.items()
                    if given.get(key, known[0]) not in known
                )
                own = {key: given[key] for key in _IBOT_HEAD if key in given}
                own["use_bn"] = bool(given.get("norm"))
                scores = [given.get("out_dim", 8192)]
                if not given.get("shared_head") and given.get("patch_out_dim"):
                    scores.append(given["patch_out_dim"])
                heads = [["dino_head", {**own, "num_clusters": [each]}] for each in scores]
                merged.config.MODEL.HEAD.PARAMS = heads
                return


# ---- keys of components


def may_set_for_others(registry: Registry[Any], path: str, origin: str) -> bool:
    """Tell whether VISSL's YAML sets a key also for components that do not read it."""
    in_a_file = registry is SCHEDULERS and origin != COMMAND_LINE
    return in_a_file or absent.is_of_vissl(path)


def warn_of_keys_without_effect(merged: Merged) -> None:
    """Warn of what the optimizer does not take; other such keys are an error: optim/options.py."""
    for path, node in optimizers(merged.config):
        changed = [key for key, default in _SHARED.items() if node[key] != default]
        for key in _find_not_taken(node.name, changed):
            where = f"config.{path}.{key}"
            origin = merged.origins.get(where, "the default")
            merged.warnings.append(f"{where} has no effect: {node.name} has no {key} ({origin})")


def _find_not_taken(name: str, keys: list[str]) -> list[str]:
    if not keys:
        return []  # nothing has to be imported
    try:
        known = inspect.signature(OPTIMIZERS.get(name)).parameters
    except (ConfigError, TypeError, ValueError):
        return []  # reported by check.py
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return []
    return [key for key in keys if key not in known]


# ---- the length of the run


def settle_length(merged: Merged) -> None:
    """Keep the length of the run, in epochs or in iterations, that was set last.

    One file, or the command line, that sets both is an error.
    """
    options, keys = merged.config.OPTIMIZER, ("num_epochs", "num_iterations")
    epochs, iterations = (options[key] for key in keys)
    if epochs is None or iterations is None:
        return  # if both are None, the check of OPTIMIZER reports it
    first, second = (merged.place(f"config.OPTIMIZER.{key}") for key in keys)
    if first == second:
        merged.problems.append(
            f"config.OPTIMIZER: the length of the run is given twice, as num_epochs ({epochs}) and "
            f"as num_iterations ({iterations}), by "
            f"{merged.origins['config.OPTIMIZER.num_epochs']}. Set one of them."
        )
        return
    given, other = keys if first > second else reversed(keys)
    options[other] = None
    merged.origins[f"config.OPTIMIZER.{other}"] = f"derived: {given} is set"


# ---- schedules


def put_default_rates(merged: Merged, path: str, node: DictConfig) -> None:
    """Put VISSL's default learning rate into a schedule that no place has replaced by another."""
    parent, _, key = path.rpartition(".")
    if not parent.endswith(".param_schedulers") or key not in ("lr", "lr_head"):
        return
    optimizer = OmegaConf.select(merged.root, parent.rpartition(".")[0])
    names = [each for each in merged.composition.values(f"{path}.name") if isinstance(each, str)]
    own = False
    if not follows_trunk(merged.config, path):
        if not names and optimizer.name not in _THEIRS:
            merged.problems.append(
                f"{path}: {optimizer.name} requires a schedule; VISSL's default, {node.name} from "
                f"0.1, is for sgd only. For example: '{path}={{name: cosine, start_value: 0.001, "
                f"end_value: 0.0, update_interval: step}}'"
            )
        own = bool(names) and (optimizer.name not in _THEIRS or len({*names}) > 1)
    for each in DEFAULT_RATES.keys() & fields_of(node).keys():
        node[each] = None if own else DEFAULT_RATES[each]


def follows_trunk(config: DictConfig, path: str) -> bool:
    """Tell whether it is the schedule of heads in a run where they have that of the trunk."""
    parent, _, key = path.removeprefix("config.").rpartition(".")
    if key != "lr_head" or not parent.endswith(".param_schedulers"):
        return False
    optimizer = OmegaConf.select(config, parent.rpartition(".")[0])
    return not optimizer.head_optimizer_params.use_different_lr


def find_schedule_problems(merged: Merged) -> Iterator[str]:
    """Yield values of schedules that have no effect, because another key sets the largest."""
    for path, node in schedules(merged.config):
        yield from _peak_problems(f"config.{path}", node, merged)


def _peak_problems(path: str, node: DictConfig, merged: Merged) -> Iterator[str]:
    scaling, place = f"{path}.auto_lr_scaling", merged.place
    scaled = bool(node.auto_lr_scaling.auto_scale)
    if scaled and node.peak is not None and place(f"{path}.peak") <= place(scaling):
        yield (
            f"{path}.peak: auto_lr_scaling sets the largest value from the batch size; set "
            f"{scaling}.base_value, or {scaling}.auto_scale=false as well."
        )
    if node.peak is None and not scaled:
        return
    setter, key = scaling if node.peak is None else f"{path}.peak", peak_key(node)
    before = max(place(setter), place(f"{path}.name"))
    if key not in (None, "values") and place(f"{path}.{key}") == merged.command_line > before:
        yield (
            f"{path}.{key}: has no effect, because {setter} sets the largest value of this "
            f"schedule. Set {path}.peak."
        )
    parts = [each for each in merged.origins if each.startswith(f"{path}.schedulers.")]
    if scaled and node.peak is None and any(each.endswith("value") for each in parts):
        yield (
            f"{parts[0]}: auto_lr_scaling sets the largest value of this schedule; set "
            f"{path}.peak, or {scaling}.base_value for its batch size."
        )
