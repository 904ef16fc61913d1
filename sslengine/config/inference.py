"""Derive values from others, once, before the config is frozen.

Each rule is a pure function from the config to key paths and values, with the reason that `--show`
prints next to the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from sslengine.config.facts import run_facts, unique_names, world_size
from sslengine.config.fast import REMOVED, best_backend
from sslengine.config.hold_out import values_of_test
from sslengine.config.lr_scaling import optimizers, scale_schedule, scale_to_peak, scale_to_ranks
from sslengine.config.merge import Merged
from sslengine.config.objects import to_object
from sslengine.config.requirements import expect_requirements
from sslengine.config.sharding import expect_no_conflict, expect_views, sharding_values
from sslengine.errors import ConfigError
from sslengine.registry import LOSSES, TRAIN_STEPS, component_key

# Meters of a list of outputs.
METERS_OF_SEVERAL = (
    "accuracy_list_meter", "mean_ap_list_meter", "precision_at_k_list_meter",
    "recall_at_k_list_meter",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Derived:
    path: str  # below `config`
    value: Any
    reason: str


def infer(merged: Merged, name: str) -> None:
    """Apply all rules in order; `name` is the name of the config file."""
    config = merged.root.config
    for derived in _run_folder(config, name, merged.origins):
        _set(merged, derived)
    for derived in _loss_of_the_model(config, merged.origins):
        _set(merged, derived)
    for rule in RULES:
        for derived in rule(config):
            _set(merged, derived)
    if merged.root.engine_name == "train":
        expect_views(config)


def replace_removed_backend(merged: Merged) -> None:
    """Select `auto` in place of a back-end of earlier versions, with a warning."""
    data, key = merged.root.config.DATA, "AUGMENT_BACKEND"
    given = not OmegaConf.is_interpolation(data, key)
    if not given or data[key] not in REMOVED:
        return
    path, name = f"config.DATA.{key}", data[key]
    merged.warnings.append(
        f"{path}: {name} was removed, and {best_backend()} is used (as with auto). A run that was "
        f"started with {name} may resume with other random crops and colours, or other pixels "
        f"({merged.origins.get(path)})"
    )
    data[key], merged.origins[path] = "auto", f"derived: {name} was removed"


def _set(merged: Merged, derived: Derived) -> None:
    current = OmegaConf.select(merged.root.config, derived.path)
    if OmegaConf.is_config(current):
        current = OmegaConf.to_container(current)
    if current != derived.value:
        OmegaConf.update(merged.root.config, derived.path, derived.value, merge=False)
        merged.origins[f"config.{derived.path}"] = f"derived: {derived.reason}"


def _run_folder(config: DictConfig, name: str, origins: dict[str, str]) -> Iterator[Derived]:
    # VISSL writes into the current folder, where two experiments would resume each other; most of
    # its files say so. On the command line `.` is the current folder.
    origin = origins.get("config.CHECKPOINT.DIR")
    in_a_file = origin is not None and origin.endswith(".yaml")
    if origin is None or (in_a_file and config.CHECKPOINT.DIR in (".", "./")):
        yield Derived("CHECKPOINT.DIR", f"runs/{name}", "from the name of the config")


def _loss_of_the_model(config: DictConfig, origins: dict[str, str]) -> Iterator[Derived]:
    step, loss = config.TRAINER.TRAIN_STEP_NAME, config.LOSS.name
    if not getattr(TRAIN_STEPS.get(step), "model_gives_losses", False):
        if not loss:
            raise ConfigError(f"config.LOSS.name: {step} requires a loss; expected its name.")
    elif not loss or "config.LOSS.name" not in origins:
        yield Derived("LOSS.name", "", "the model returns its losses")
    else:
        raise ConfigError(
            f"config.LOSS.name: {step} uses the losses that the model returns, and would never "
            f"call {loss!r}. Set it to '', or choose another config.TRAINER.TRAIN_STEP_NAME. Set "
            f"by {origins['config.LOSS.name']}."
        )


def _meter_names(config: DictConfig) -> Iterator[Derived]:
    if config.METERS.name and not config.METERS.names:
        yield Derived("METERS.names", [config.METERS.name], "METERS.name")


def _meters_of_features(config: DictConfig) -> Iterator[Derived]:
    """One output for each feature that is evaluated, as in VISSL."""
    settings = config.MODEL.FEATURE_EVAL_SETTINGS
    features = [entry[0] for entry in _plain_list(settings.LINEAR_EVAL_FEAT_POOL_OPS_MAP)]
    if not settings.EVAL_MODE_ON or not all(isinstance(each, str) for each in features):
        return
    names = unique_names(features)
    for meter in METERS_OF_SEVERAL if names else ():
        given = config.METERS.get(meter)
        held = _plain(given) if given is not None else {}
        several = max(len(names), int(held.get("num_meters") or 1)) > 1
        told = len(held.get("meter_names") or ()) == len(names)
        if meter in config.METERS.names and several and not told:
            value = {**held, "num_meters": len(names), "meter_names": names}
            yield Derived(f"METERS.{meter}", value, "the features of FEATURE_EVAL_SETTINGS")


def _plain_list(value: Any) -> list[Any]:
    plain: Any = OmegaConf.to_container(value)
    return [each for each in plain if isinstance(each, list) and each]


def _held_out(config: DictConfig) -> Iterator[Derived]:
    for path, value in values_of_test(config.DATA):
        yield Derived(path, value, "DATA.HOLD_OUT, as TRAIN's")


def _label_type(config: DictConfig) -> Iterator[Derived]:
    for split in ("TRAIN", "TEST"):
        data = config.DATA[split]
        if not data.LABEL_SOURCES and data.LABEL_TYPE == "standard":
            yield Derived(f"DATA.{split}.LABEL_TYPE", "sample_index", "there are no LABEL_SOURCES")


def _backend(config: DictConfig) -> Iterator[Derived]:
    device, processes = config.MACHINE.DEVICE, world_size(config)
    if device == "mps" and processes > 1:
        raise ConfigError(
            f"config.MACHINE.DEVICE: no library exchanges tensors between processes that compute "
            f"on Apple's GPU (mps), and this run has {processes}. Set "
            f"config.DISTRIBUTED.NUM_PROC_PER_NODE=1 and NUM_NODES=1, or config.MACHINE.DEVICE=cpu."
        )
    if device in ("cpu", "mps") and config.DISTRIBUTED.BACKEND == "nccl":
        yield Derived("DISTRIBUTED.BACKEND", "gloo", "nccl requires GPUs")


def _peaks(config: DictConfig) -> Iterator[Derived]:
    for path, optimizer in optimizers(config):
        for key, schedule in optimizer.param_schedulers.items():
            if schedule is not None and schedule.peak is not None:
                old, where = _plain(schedule), f"{path}.param_schedulers.{key!s}"
                try:
                    new = scale_to_peak(old, schedule.peak)
                except ConfigError as error:
                    raise ConfigError(f"config.{where}.{error}") from error
                new["auto_lr_scaling"] = {**old["auto_lr_scaling"], "auto_scale": False}
                yield from _changes(where, old, new, f"peak {schedule.peak:g}")


def _learning_rate(config: DictConfig) -> Iterator[Derived]:
    node_batch = config.DATA.TRAIN.BATCHSIZE_PER_REPLICA * config.DISTRIBUTED.NUM_PROC_PER_NODE
    node_batch *= config.OPTIMIZER.accumulate
    global_batch = node_batch * config.DISTRIBUTED.NUM_NODES
    for path, optimizer in optimizers(config):
        schedulers = optimizer.param_schedulers
        for key in ("lr", "lr_head"):
            if schedulers[key].auto_lr_scaling.auto_scale:
                old = _plain(schedulers[key])
                base = old["auto_lr_scaling"]["base_lr_batch_size"]
                reason = f"auto_lr_scaling, batch {global_batch} over {base}"
                new = scale_schedule(old, global_batch, node_batch)
                yield from _changes(f"{path}.param_schedulers.{key}", old, new, reason)
        if not optimizer.head_optimizer_params.use_different_lr:
            # Read again: the values of lr may have been scaled above.
            old, new = _plain(schedulers.lr_head), _plain(schedulers.lr)
            yield from _changes(f"{path}.param_schedulers.lr_head", old, new, "same as lr")


def _reference_world_size(config: DictConfig) -> Iterator[Derived]:
    before, now = config.REFERENCE_WORLD_SIZE, world_size(config)
    for path, value in scale_to_ranks(config):
        yield Derived(path, value, f"REFERENCE_WORLD_SIZE, {now} ranks instead of {before}")


def _head_weight_decay(config: DictConfig) -> Iterator[Derived]:
    for path, optimizer in optimizers(config):
        if not optimizer.head_optimizer_params.use_different_wd:
            decay = optimizer.weight_decay
            yield Derived(
                f"{path}.head_optimizer_params.weight_decay", decay, "same as weight_decay"
            )


def _loss_options(config: DictConfig) -> Iterator[Derived]:
    """Derive options of the loss from the facts of the run, by its method `infer(facts)`.

    The run has what the loss needs: that is checked here.
    """
    if not config.LOSS.name:
        return
    loss = LOSSES.get(config.LOSS.name, "config.LOSS.name")
    if hasattr(loss, "requires"):
        expect_requirements(config, loss, run_facts(config))
    name = component_key(config.LOSS.name)
    node = config.LOSS.get(name)
    if hasattr(OmegaConf.get_type(node), "infer"):
        options = to_object(cast(DictConfig, node))
        before = dataclasses.asdict(options)
        options.infer(run_facts(config))
        after = dataclasses.asdict(options)
        yield from _changes(f"LOSS.{name}", before, after, f"by {name} from the run")


def _sharding(config: DictConfig) -> Iterator[Derived]:
    for path, value, reason in sharding_values(config):
        yield Derived(path, value, reason)


def _conflicts(config: DictConfig) -> Iterator[Derived]:
    expect_no_conflict(config)
    yield from ()


def _plain(node: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(node)  # type: ignore[return-value]


def _changes(path: str, old: dict[str, Any], new: dict[str, Any], reason: str) -> Iterator[Derived]:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict) and old[key]:
            yield from _changes(f"{path}.{key}", old[key], value, reason)
        elif old.get(key) != value:
            yield Derived(f"{path}.{key}", value, reason)


RULES: tuple[Callable[[DictConfig], Iterator[Derived]], ...] = (
    _meter_names,
    _meters_of_features,
    _held_out,
    _label_type,
    _backend,
    _reference_world_size,
    _sharding,
    _conflicts,
    _peaks,
    _learning_rate,
    _head_weight_decay,
    _loss_options,
)
