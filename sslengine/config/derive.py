"""Derive values from others, once, before the config is frozen.

Each rule is a pure function from the config to key paths and values, with the reason that `--show`
prints next to the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config.components import keys_of, owns_network
from sslengine.config.facts import REMOVED as REMOVED_BACKENDS
from sslengine.config.facts import (
    best_backend,
    is_sharded,
    lacks_loss_scaling,
    run_facts,
    unique_names,
    world_size,
)
from sslengine.config.lr_scaling import (
    optimizers,
    rates,
    scale_schedule,
    scale_to_peak,
    schedules,
)
from sslengine.config.merged import Merged
from sslengine.config.options import SHARDED_TASK
from sslengine.config.requirements import expect_no_conflict, expect_requirements, expect_views
from sslengine.config.sections import find_host, give_keys
from sslengine.errors import ConfigError
from sslengine.registry import (
    COLLATORS,
    DATA_SOURCES,
    LOSSES,
    TRAIN_STEPS,
    component_key,
    requirements_of,
)

# Meters of a list of outputs.
METERS_OF_SEVERAL = (
    "accuracy_list_meter", "mean_ap_list_meter", "precision_at_k_list_meter",
    "recall_at_k_list_meter",
)  # fmt: skip
# The keys of a split that determine the images and how they are read, and their classes. Those of
# data sources are keys of a split that has such a source.
_IMAGES = (
    "DATA_SOURCES", "DATA_PATHS", "DATASET_NAMES", "REMOVE_IMG_PATH_PREFIX", "NEW_IMG_PATH_PREFIX",
    "FIELDS", "IMAGE_COLUMN", "IMAGE_MODE", "PIXEL_RANGE", "TRANSPARENT", "IMAGE_PAGE",
    "EXIF_ROTATION", "DEFAULT_GRAY_IMG_SIZE",
)  # fmt: skip
_LABELS = (
    "LABEL_SOURCES", "LABEL_PATHS", "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR",
)  # fmt: skip
# Collators that a method with other batches replaces by its own.
_GENERAL = ("default_collate", "simclr_collator", "multicrop_collator")
_AUTO_FSDP = "MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP"

Derived = tuple[str, Any, str]  # a key path below `config`, a value, the reason


def derive(merged: Merged) -> None:
    """Apply all rules in order."""
    config = merged.config
    for derived in (*_run_folder(merged), *_loss_of_the_model(config, merged.origins)):
        _set(merged, *derived)
    for rule in RULES:
        for derived in rule(config):
            _set(merged, *derived)
    expect_no_conflict(config)
    if merged.root.engine_name == "train":
        expect_views(config)
    if config.OPTIMIZER.use_zero:
        merged.warnings.append(
            "config.OPTIMIZER.use_zero: on several ranks the model is sharded too (FSDP2), as with "
            "config.TRAINER.TASK_NAME=self_supervision_fsdp_task."
        )
    if merged.root.node_id:
        merged.warnings.append("node_id: has no effect; torchrun or srun numbers the nodes.")


def replace_removed_backend(merged: Merged) -> None:
    """Select `auto` in place of a back-end of earlier versions, with a warning."""
    data, key = merged.config.DATA, "AUGMENT_BACKEND"
    given = not OmegaConf.is_interpolation(data, key)
    if not given or data[key] not in REMOVED_BACKENDS:
        return
    path, name = f"config.DATA.{key}", data[key]
    merged.warnings.append(
        f"{path}: {name} was removed, and {best_backend()} is used (as with auto). A run that was "
        f"started with {name} may resume with other random crops and colours, or other pixels "
        f"({merged.origins.get(path)})"
    )
    data[key], merged.origins[path] = "auto", f"derived: {name} was removed"


def choose_collators(merged: Merged) -> None:
    """Replace general collators by those of a method that owns its network, whose arguments the
    YAML has."""
    config, name = merged.config, merged.config.LOSS.name
    with suppress(ConfigError):  # check.py reports a wrong name
        loss = LOSSES.get(name) if name else None
        collators = requirements_of(loss).collators or ("multicrop_collator",)
        for split in ("TRAIN", "TEST") if owns_network(loss) else ():
            given, path = config.DATA[split].COLLATE_FUNCTION, f"DATA.{split}.COLLATE_FUNCTION"
            if given in _GENERAL and given not in collators:
                _set(merged, path, collators[0], f"{component_key(name)} takes its batches")
                params: Any = OmegaConf.to_container(config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS)
                _set(merged, f"DATA.{split}.COLLATE_FUNCTION_PARAMS", params, "as TRAIN's")


def _set(merged: Merged, path: str, value: Any, reason: str) -> None:
    above, _, key = path.rpartition(".")
    section = OmegaConf.select(merged.config, above) if above else merged.config
    found = find_host(section)
    if found is not None and key not in section:
        return  # of a component in whose place another is now
    current = OmegaConf.select(merged.config, path)
    if OmegaConf.is_config(current):
        current = OmegaConf.to_container(current)
    if current != value:
        OmegaConf.update(merged.config, path, value, merge=False)
        merged.origins[f"config.{path}"] = f"derived: {reason}"
        if found is not None and key == found.chosen_by:
            give_keys(section, [value] if isinstance(value, str) else value)


def _run_folder(merged: Merged) -> Iterator[Derived]:
    # VISSL writes into the current folder, where two experiments would resume each other; most of
    # its files say so. On the command line `.` is the current folder.
    origin = merged.origins.get("config.CHECKPOINT.DIR")
    in_a_file = origin is not None and origin.endswith(".yaml")
    if origin is None or (in_a_file and merged.config.CHECKPOINT.DIR in (".", "./")):
        name = f"runs/{merged.composition.name}"
        yield "CHECKPOINT.DIR", name, "from the name of the config"


def _loss_of_the_model(config: DictConfig, origins: dict[str, str]) -> Iterator[Derived]:
    step, loss = config.TRAINER.TRAIN_STEP_NAME, config.LOSS.name
    if not getattr(TRAIN_STEPS.get(step), "model_gives_losses", False):
        if not loss:
            raise ConfigError(f"config.LOSS.name: {step} requires a loss; expected its name.")
    elif not loss or "config.LOSS.name" not in origins:
        yield ("LOSS.name", "", "the model returns its losses")
    else:
        raise ConfigError(
            f"config.LOSS.name: {step} uses the losses that the model returns, and would never "
            f"call {loss!r}. Set it to '', or choose another config.TRAINER.TRAIN_STEP_NAME. Set "
            f"by {origins['config.LOSS.name']}."
        )


def _meter_names(config: DictConfig) -> Iterator[Derived]:
    if config.METERS.name and not config.METERS.names:
        yield ("METERS.names", [config.METERS.name], "METERS.name")


def _meters_of_features(config: DictConfig) -> Iterator[Derived]:
    """Give meters one output for each feature that is evaluated, as in VISSL."""
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
            yield (f"METERS.{meter}", value, "the features of FEATURE_EVAL_SETTINGS")


def _plain_list(value: Any) -> list[Any]:
    plain: Any = OmegaConf.to_container(value)
    return [each for each in plain if isinstance(each, list) and each]


def _held_out(config: DictConfig) -> Iterator[Derived]:
    """TEST is a part of TRAIN's images, so it takes over the keys that it does not set."""
    data = config.DATA
    if not data.HOLD_OUT.SHARE:
        return
    if data.HOLD_OUT.STRATIFIED and not data.TRAIN.LABEL_SOURCES:
        raise ConfigError(
            "config.DATA.HOLD_OUT.STRATIFIED: it requires labels. Set "
            "config.DATA.TRAIN.LABEL_SOURCES, or set STRATIFIED to false."
        )
    # What is set to nothing is not set.
    make_default: Any = OmegaConf.get_type(data.TEST)
    default, taken = make_default(), keys_of(DATA_SOURCES, list(data.TRAIN.DATA_SOURCES))
    images = dict.fromkeys((*_IMAGES, *sorted(taken.difference(_LABELS))))
    same = {*images, *(_LABELS if data.HOLD_OUT.STRATIFIED else ())}
    for key in filter(data.TRAIN.__contains__, (*images, *_LABELS)):
        train, test = data.TRAIN[key], data.TEST.get(key)
        if test in ("", None, getattr(default, key, None)):
            yield f"DATA.TEST.{key}", train, "DATA.HOLD_OUT, as TRAIN's"
        elif test != train and key in same:
            raise ConfigError(
                f"config.DATA.TEST.{key}: with config.DATA.HOLD_OUT.SHARE TEST is a part of "
                f"TRAIN's images; expected no value, or that of TRAIN ({train}), got {test}."
            )


def _label_type(config: DictConfig) -> Iterator[Derived]:
    for split in ("TRAIN", "TEST"):
        data = config.DATA[split]
        if not data.LABEL_SOURCES and data.LABEL_TYPE == "standard":
            yield (f"DATA.{split}.LABEL_TYPE", "sample_index", "there are no LABEL_SOURCES")


def _backend(config: DictConfig) -> Iterator[Derived]:
    device, processes = config.MACHINE.DEVICE, world_size(config)
    if device == "mps" and processes > 1:
        raise ConfigError(
            f"config.MACHINE.DEVICE: no library exchanges tensors between processes that compute "
            f"on Apple's GPU (mps), and this run has {processes}. Set "
            f"config.DISTRIBUTED.NUM_PROC_PER_NODE=1 and NUM_NODES=1, or config.MACHINE.DEVICE=cpu."
        )
    if device in ("cpu", "mps") and config.DISTRIBUTED.BACKEND == "nccl":
        yield ("DISTRIBUTED.BACKEND", "gloo", "nccl requires GPUs")


def _peaks(config: DictConfig) -> Iterator[Derived]:
    for path, schedule in schedules(config):
        if schedule.peak is not None:
            old = _plain(schedule)
            try:
                new = scale_to_peak(old, schedule.peak)
            except ConfigError as error:
                raise ConfigError(f"config.{path}.{error}") from error
            new["auto_lr_scaling"] = {**old["auto_lr_scaling"], "auto_scale": False}
            yield from _changes(path, old, new, f"peak {schedule.peak:g}")


def _scaled_rates(config: DictConfig) -> Iterator[Derived]:
    node_batch = config.DATA.TRAIN.BATCHSIZE_PER_REPLICA * config.DISTRIBUTED.NUM_PROC_PER_NODE
    node_batch *= config.OPTIMIZER.accumulate
    global_batch = node_batch * config.DISTRIBUTED.NUM_NODES
    for path, old in rates(config):
        if old["auto_lr_scaling"]["auto_scale"]:
            base = old["auto_lr_scaling"]["base_lr_batch_size"]
            reason = f"auto_lr_scaling, batch {global_batch} over {base}"
            yield from _changes(path, old, scale_schedule(old, global_batch, node_batch), reason)


def _rates_of_heads(config: DictConfig) -> Iterator[Derived]:
    for path, optimizer in optimizers(config):
        if not optimizer.head_optimizer_params.use_different_lr:
            old, new = (_plain(optimizer.param_schedulers[key]) for key in ("lr_head", "lr"))
            yield from _changes(f"{path}.param_schedulers.lr_head", old, new, "same as lr")


def _head_weight_decay(config: DictConfig) -> Iterator[Derived]:
    for path, optimizer in optimizers(config):
        if not optimizer.head_optimizer_params.use_different_wd:
            decay = optimizer.weight_decay
            yield (f"{path}.head_optimizer_params.weight_decay", decay, "same as weight_decay")


def _loss_options(config: DictConfig) -> Iterator[Derived]:
    """Derive options of the loss from the facts of the run, by its method `infer(facts)`.

    The run has what the loss needs: that is checked here.
    """
    if not config.LOSS.name:
        return
    loss = LOSSES.get(config.LOSS.name, "config.LOSS.name")
    name = component_key(config.LOSS.name)
    owns = owns_network(loss)
    if owns:  # heads of earlier YAML are read before they go
        yield from _inferred(config, name)
        yield from _given_trunk(config, loss, name)
    if hasattr(loss, "requires"):
        expect_requirements(config, loss, run_facts(config))
    if not owns:
        yield from _inferred(config, name)


def _inferred(config: DictConfig, name: str) -> Iterator[Derived]:
    node = config.LOSS.get(name)
    if hasattr(OmegaConf.get_type(node), "infer"):
        options: Any = OmegaConf.to_object(node)
        before = dataclasses.asdict(options)
        options.infer(run_facts(config))
        after = dataclasses.asdict(options)
        yield from _changes(f"LOSS.{name}", before, after, f"by {name} from the run")


def _given_trunk(config: DictConfig, loss: Any, name: str) -> Iterator[Derived]:
    """Leave heads, routes and inputs to a method that owns its network."""
    if config.MODEL.VIEWS_APART:
        raise ConfigError(
            f"config.MODEL.VIEWS_APART: {name} passes views through its network itself "
            f"(`sslengine.pass_apart`). Set it to false."
        )
    for key in ("HEAD.PARAMS", "MULTI_INPUT_HEAD_MAPPING"):
        yield f"MODEL.{key}", [], f"{name} has its own heads"
    for split in ("TRAIN", "TEST"):
        data, path = config.DATA[split], f"DATA.{split}"
        images = getattr(COLLATORS.get(data.COLLATE_FUNCTION), "image_keys", ())
        if images:
            yield f"{path}.INPUT_KEY_NAMES", [images[0]], f"{name} takes all of the batch"
    earlier = getattr(loss, "earlier_names", {})
    for key in ("NON_TRAINABLE_PARAMS", "TEMP_FROZEN_PARAMS_ITER_MAP",
                "TEMP_FROZEN_PARAMS_EPOCH_MAP") if earlier else ():  # fmt: skip
        given = OmegaConf.to_container(config.MODEL[key])
        yield f"MODEL.{key}", _rename_all(given, earlier), f"the parameters of {name}"


def _rename_all(value: Any, earlier: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_rename_all(each, earlier) for each in value]
    name = str(value).removeprefix("module.")
    before = next(filter(name.startswith, earlier), "")
    return f"loss.{earlier[before]}{name.removeprefix(before)}" if before else value


def _sharding(config: DictConfig) -> Iterator[Derived]:
    """AUTO_SETUP_FSDP sets several keys, as in VISSL; use_zero is an alias of a sharded run."""
    fsdp, amp = config.MODEL.FSDP_CONFIG, config.MODEL.AMP_PARAMS
    if config.OPTIMIZER.use_zero:
        yield "TRAINER.TASK_NAME", SHARDED_TASK, "OPTIMIZER.use_zero"
    if not fsdp.AUTO_SETUP_FSDP:
        if is_sharded(config) and lacks_loss_scaling(config) and not config.MACHINE.PRECISION:
            reason = "FSDP_CONFIG.compute_dtype float16 requires loss scaling"
            yield "MODEL.AMP_PARAMS.USE_AMP", True, reason
            yield "MODEL.AMP_PARAMS.AMP_TYPE", "pytorch", reason
            yield "MODEL.AMP_PARAMS.AMP_DTYPE", "float16", reason
        return
    yield "TRAINER.TASK_NAME", SHARDED_TASK, _AUTO_FSDP
    if not amp.USE_AMP:
        return
    yield "MODEL.AMP_PARAMS.AMP_TYPE", "pytorch", _AUTO_FSDP
    if fsdp.AMP_TYPE in ("O1", "O2"):
        half = fsdp.AMP_TYPE == "O2"
        reason = f"{_AUTO_FSDP}, AMP_TYPE {fsdp.AMP_TYPE}"
        dtype = amp.AMP_DTYPE if half else "float32"
        yield "MODEL.FSDP_CONFIG.mixed_precision", True, reason
        yield "MODEL.FSDP_CONFIG.compute_dtype", dtype, reason
        yield "MODEL.FSDP_CONFIG.fp32_reduce_scatter", not half, reason


def _plain(node: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(node)  # type: ignore[return-value]


def _changes(path: str, old: dict[str, Any], new: dict[str, Any], reason: str) -> Iterator[Derived]:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict) and old[key]:
            yield from _changes(f"{path}.{key}", old[key], value, reason)
        elif old.get(key) != value:
            yield (f"{path}.{key}", value, reason)


RULES: tuple[Callable[[DictConfig], Iterator[Derived]], ...] = (
    _meter_names,
    _meters_of_features,
    _held_out,
    _label_type,
    _backend,
    _sharding,
    _peaks,
    _scaled_rates,
    _rates_of_heads,
    _head_weight_decay,
    _loss_options,
)
