"""The optimizer with its schedules, as train steps and checkpoints use it.

    optimizer.on_epoch(where)      at the start of an epoch
    optimizer.schedule(where)      before each step
    optimizer.step(precision)      the step of torch's optimizer, called by `precision`

A checkpoint restores the optimizer's state, and the values that schedules have set last. Other
hyper-parameters come from the config, also after a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from sslengine.distributed.sharding import like
from sslengine.errors import CheckpointError, ConfigError, TrainingError
from sslengine.optim.schedules import Schedule
from sslengine.precision import Precision


class ScaledSchedule(NamedTuple):
    """A schedule times a constant."""

    schedule: Schedule
    scale: float = 1.0


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
