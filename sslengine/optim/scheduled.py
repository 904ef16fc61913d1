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


class _Target(NamedTuple):
    group: int
    key: str
    scale: float
    of_betas: bool  # Adam's momentum is the first of its betas


class ScheduledOptimizer:
    def __init__(self, inner: Optimizer, plan: Sequence[Mapping[str, ScaledSchedule]]) -> None:
        """`plan`: for each parameter group, {"lr" | "weight_decay" | "momentum": schedule}."""
        self.inner = inner
        self.options_view = OptionsView(self)
        groups = inner.param_groups
        self._timetables = {each: _timetable(plan, groups, each) for each in ("step", "epoch")}
        self._check_keys()
        for interval in self._timetables:
            self.schedule(0.0, interval)
        scheduled = [{"params", *(_stored_as(key, group) for key in keys)}
                     for keys, group in zip(plan, groups, strict=True)]  # fmt: skip
        self._constants = [
            {key: value for key, value in group.items() if key not in keys}
            for group, keys in zip(groups, scheduled, strict=True)
        ]

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
            raise TrainingError(_out_of_range(where))
        groups = self.inner.param_groups
        for schedule, targets in self._timetables[interval].items():
            value = schedule.value(where)
            for index, key, scale, of_betas in targets:
                if of_betas:
                    groups[index]["betas"] = (value, groups[index]["betas"][1])
                else:
                    groups[index][key] = value * scale

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
        saved = state["param_groups"]
        self._check_fits(saved)
        groups = [{**old, **new} for old, new in zip(saved, self._constants, strict=True)]
        own = [parameter for group in self.inner.param_groups for parameter in group["params"]]
        indices = [index for group in saved for index in group["params"]]
        parameters = dict(zip(indices, own, strict=True))
        values = {index: _shard(each, parameters[index]) for index, each in state["state"].items()}
        self.inner.load_state_dict({"state": values, "param_groups": groups})

    def _check_keys(self) -> None:
        for targets in (each for table in self._timetables.values() for each in table.values()):
            for index, key, *_ in targets:
                if _stored_as(key, self.inner.param_groups[index]) not in self.param_groups[index]:
                    raise ConfigError(
                        f"OPTIMIZER.param_schedulers.{key}: {type(self.inner).__name__} "
                        f"has no {key} to schedule."
                    )

    def _check_fits(self, saved: Sequence[Mapping[str, Any]]) -> None:
        mine = self.inner.param_groups
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in mine]:
            raise CheckpointError(
                f"the optimizer in the checkpoint has {_describe(saved)}; this run's has "
                f"{_describe(mine)}. The model, its frozen parameters, or OPTIMIZER's settings "
                f"of parameter groups have changed."
            )
        for key in ("momentum", "betas"):
            if (key in saved[0]) != (key in mine[0]):
                raise CheckpointError(
                    f"the checkpoint was written by another kind of optimizer than this run's "
                    f"{type(self.inner).__name__}: only one of them has {key}. Set OPTIMIZER.name "
                    f"as it was, or start from the weights alone (MODEL.WEIGHTS_INIT)."
                )


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


def _timetable(
    plan: Sequence[Mapping[str, ScaledSchedule]], groups: Sequence[Mapping[str, Any]], interval: str
) -> dict[Schedule, list[_Target]]:
    """Map each schedule to the values it sets; a schedule of several groups is computed once."""
    table: dict[Schedule, list[_Target]] = {}
    for index, keys in enumerate(plan):
        for key, (schedule, scale) in keys.items():
            if schedule.interval == interval:
                of_betas = _stored_as(key, groups[index]) == "betas"
                table.setdefault(schedule, []).append(_Target(index, key, scale, of_betas))
    return table


def _stored_as(key: str, group: Mapping[str, Any]) -> str:
    """Return the key that holds it: Adam's momentum is the first of its betas."""
    return "betas" if key == "momentum" and "betas" in group else key


def _describe(groups: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{group.get('name', 'unnamed')} ({len(group['params'])})" for group in groups]
    return f"{sum(len(group['params']) for group in groups)} parameters: {', '.join(parts)}"


def _out_of_range(where: float) -> str:
    return (
        f"an optimizer step at where = {where:.6g}; expected 0 or more and less than 1.\n"
        f"  Likely causes: the run was resumed with fewer epochs or iterations than it had "
        f"done; the dataset, batch size or number of processes changed between the runs, "
        f"and with it the number of steps; a loop continues after the last step."
    )
