"""The optimizer of `config.OPTIMIZER` with its parameter groups and schedules.

    optimizer.on_epoch(where)      at the start of an epoch
    optimizer.schedule(where)      before each step
    optimizer.step(precision)      the step of torch's optimizer, called by `precision`

A checkpoint restores the optimizer's state, and the values that schedules have set last. Other
hyper-parameters come from the config, also after a checkpoint is loaded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sslengine.distributed.sharding import is_sharded, like
from sslengine.errors import CheckpointError, ConfigError, TrainingError
from sslengine.optim.optimizers import add_larc
from sslengine.optim.options import OptimizerSettings
from sslengine.optim.param_groups import Group, build_param_groups
from sslengine.optim.schedules import Schedule, build_schedule
from sslengine.precision import Precision
from sslengine.registry import OPTIMIZERS

log = logging.getLogger("sslengine")

# Keys of a group for its schedules, which torch does not get.
_PLAN_KEYS = ("is_head", "lr_scale", "weight_decay_scale")


class ScaledSchedule(NamedTuple):
    """A schedule times a constant."""

    schedule: Schedule
    scale: float = 1.0


# The schedules of a group, by the hyper-parameter that they set.
Plan = dict[str, ScaledSchedule]


def build_optimizer(
    model: nn.Module, options: OptimizerSettings, device: torch.device, num_epochs: float
) -> ScheduledOptimizer:
    """Build the optimizer of a model that is on its device and not yet wrapped in DDP.

    num_epochs: the length of the run, also if it is set in iterations.
    """
    groups = build_param_groups(model, options)
    schedules = _schedules(options, num_epochs)
    plan = [_plan(group, schedules) for group in groups]
    optimizer_class = OPTIMIZERS.get(options.name, "OPTIMIZER.name")
    known = inspect.signature(optimizer_class).parameters
    groups = [_strip_plan_keys(group, options, known) for group in groups]
    groups, plan = _merge_equal(groups, plan)
    # torch has no fused SGD for sharded parameters; on a GPU it chooses foreach itself.
    sharded = any(is_sharded(parameter) for group in groups for parameter in group["params"])
    fastest = {} if sharded else _fastest_form(known, options, device)
    arguments = {**fastest, **options.arguments(optimizer_class)}
    if "lr" in known:
        arguments["lr"] = schedules["lr"].value(0.0)
    if options.use_larc:
        optimizer_class = add_larc(optimizer_class)
        arguments["larc"] = options.larc_config
    try:
        inner = optimizer_class(groups, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"OPTIMIZER: {options.name} rejects its arguments: {error}") from error
    return ScheduledOptimizer(inner, plan)


def _schedules(options: OptimizerSettings, num_epochs: float) -> dict[str, Schedule]:
    """Build the schedules; those with the same options share one object, computed once."""
    built: dict[int, Schedule] = {}
    chosen = options.schedulers()
    for key, each in chosen.items():
        if id(each) not in built:
            milestones = getattr(each, "milestones", None) or ()
            if max(milestones, default=0) >= num_epochs:
                log.warning(
                    "config.OPTIMIZER.param_schedulers.%s.milestones: %s; the run ends with epoch "
                    "%g, so later milestones have no effect.", key, milestones, num_epochs,
                )  # fmt: skip
            try:
                built[id(each)] = build_schedule(each, num_epochs)
            except ConfigError as error:
                raise ConfigError(f"config.OPTIMIZER.param_schedulers.{key}.{error}") from error
    return {key: built[id(each)] for key, each in chosen.items()}


def _plan(group: Group, schedules: Mapping[str, Schedule]) -> Plan:
    suffix = "_head" if group.get("is_head") else ""
    plan = {"lr": ScaledSchedule(schedules[f"lr{suffix}"], group.get("lr_scale", 1.0))}
    if f"weight_decay{suffix}" in schedules and "weight_decay" not in group:
        scale = group.get("weight_decay_scale", 1.0)
        plan["weight_decay"] = ScaledSchedule(schedules[f"weight_decay{suffix}"], scale)
    if "momentum" in schedules:
        plan["momentum"] = ScaledSchedule(schedules["momentum"])
    return plan


def _strip_plan_keys(group: Group, options: OptimizerSettings, known: Mapping[str, Any]) -> Group:
    kept = {key: value for key, value in group.items() if key not in _PLAN_KEYS}
    if "weight_decay" in known:
        head = options.head_optimizer_params
        own = group.get("is_head") and head.use_different_wd
        decay = head.weight_decay if own else options.weight_decay
        kept.setdefault("weight_decay", decay * group.get("weight_decay_scale", 1.0))
    return kept


def _merge_equal(groups: list[Group], plan: list[Plan]) -> tuple[list[Group], list[Plan]]:
    """Merge groups with equal values and schedules, because each group costs kernel launches."""
    joined: list[tuple[Group, Plan]] = []
    for group, scaled in zip(groups, plan, strict=True):
        twins = (each for each, its in joined if its == scaled and _values(each) == _values(group))
        twin = next(twins, None)
        if twin is None:
            joined.append((group, scaled))
        else:
            twin["params"] = [*twin["params"], *group["params"]]
            twin["name"] = f"{twin['name']} + {group['name']}"
    return [group for group, _ in joined], [scaled for _, scaled in joined]


def _values(group: Group) -> Group:
    return {key: value for key, value in group.items() if key not in ("params", "name")}


def _fastest_form(
    known: Mapping[str, Any], options: OptimizerSettings, device: torch.device
) -> dict[str, bool]:
    """Choose the fused form if torch has it, else torch's default: foreach on GPU, a loop on CPU.

    On a CPU, for a tiny model and for ResNet-18, fused took half the time of the loop for SGD and
    a third or less for AdamW; foreach took up to twice the time.
    """
    if "fused" not in known or "foreach" in options.args or device.type not in ("cuda", "cpu"):
        return {}
    # Dampening is not applied in the first step, which SGD's zero-initialised momentum does not
    # distinguish.
    return {} if options.dampening else {"fused": True}


class ScheduledOptimizer:
    def __init__(self, inner: Optimizer, plan: Sequence[Mapping[str, ScaledSchedule]]) -> None:
        """`plan`: for each parameter group, {"lr" | "weight_decay" | "momentum": schedule}."""
        self.inner = inner
        self.options_view = OptionsView(self)
        # By interval, for each schedule: the groups, keys and factors that it sets. A schedule of
        # several groups is computed once.
        self._targets: dict[str, dict[Schedule, list[tuple[int, str, float]]]]
        self._targets = {"step": {}, "epoch": {}}
        constants = [
            {k: v for k, v in group.items() if k != "params"} for group in inner.param_groups
        ]
        self._constants = constants  # what no schedule sets
        for index, keys in enumerate(plan):
            for key, (schedule, scale) in keys.items():
                group = inner.param_groups[index]
                # Adam's momentum is the first of its betas.
                stored = "betas" if key == "momentum" and "betas" in group else key
                if stored not in group:
                    raise ConfigError(
                        f"OPTIMIZER.param_schedulers.{key}: {type(inner).__name__} has no {key} to "
                        f"schedule."
                    )
                targets = self._targets[schedule.interval].setdefault(schedule, [])
                targets.append((index, stored, scale))
                del constants[index][stored]
        for interval in self._targets:
            self.schedule(0.0, interval)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    def on_epoch(self, where: float) -> None:
        """Set the values that change with every epoch; `where` is that of its first step.

        After the last epoch (a test phase with where = 1) nothing is set.
        """
        if 0.0 <= where < 1.0:
            self.schedule(where, "epoch")

    def schedule(self, where: float, interval: str = "step") -> None:
        """Set the values that change with every step, or with every epoch."""
        if not 0.0 <= where < 1.0:
            raise TrainingError(
                f"an optimizer step at where = {where:.6g}, which is not in [0, 1): was the run "
                f"resumed with fewer epochs, or more steps per epoch, than it had?"
            )
        groups = self.inner.param_groups
        for schedule, targets in self._targets[interval].items():
            value = schedule.value(where)
            for index, key, scale in targets:
                group = groups[index]
                group[key] = value * scale if key != "betas" else (value, group["betas"][1])

    def step(self, precision: Precision) -> None:
        precision.step(self.inner)

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates for the log."""
        return {"lr": self.options_view.lr}

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "param_groups" not in state:
            raise CheckpointError(
                "the checkpoint has no state of the optimizer. To start from its weights alone, "
                "set MODEL.WEIGHTS_INIT.PARAMS_FILE to it."
            )
        saved, mine = state["param_groups"], self.inner.param_groups
        if (then := _describe(saved)) != (now := _describe(mine)):
            raise CheckpointError(
                f"the optimizer in the checkpoint has {then}; this run's has {now}. Set MODEL and "
                f"OPTIMIZER as they were, or start from the weights alone (MODEL.WEIGHTS_INIT)."
            )
        parameters = {
            index: parameter
            for old, new in zip(saved, mine, strict=True)
            for index, parameter in zip(old["params"], new["params"], strict=True)
        }
        groups = [{**old, **new} for old, new in zip(saved, self._constants, strict=True)]
        values = {index: _shard(each, parameters[index]) for index, each in state["state"].items()}
        self.inner.load_state_dict({"state": values, "param_groups": groups})


def _describe(groups: Sequence[Mapping[str, Any]]) -> str:
    sizes = [len(group["params"]) for group in groups]
    kind = [key for key in ("momentum", "betas") if key in groups[0]]
    return f"groups of {sizes} parameters, with {kind or 'no momentum'}"


def _shard(state: Any, parameter: Tensor) -> Any:
    """Shard tensors of the parameter's shape like the parameter; other values do not change."""
    if not isinstance(state, Mapping):
        return state
    return {
        key: like(value, parameter)
        if isinstance(value, Tensor) and value.shape == parameter.shape and key != "step"
        else value
        for key, value in state.items()
    }


class OptionsView:
    """`options_view.lr`: one number; if groups differ, the largest."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look these up before `_optimizer` is set
            raise AttributeError(name)
        values = [group[name] for group in self._optimizer.param_groups if name in group]
        if not values:
            raise AttributeError(f"the optimizer has no option {name!r}")
        return max(values)
