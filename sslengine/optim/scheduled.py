"""The optimizer with its schedules: what a train step and a checkpoint deal with.

    optimizer.on_epoch(where)      at the start of an epoch
    optimizer.schedule(where)      before each step
    optimizer.step(precision)      torch's, by way of precision

Hyper-parameters come from the config, also after a checkpoint has been loaded; only the
optimizer's state, and the values that schedules have set last, come from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from sslengine.distributed.sharding import like
from sslengine.distributed.zero import whole_state
from sslengine.errors import CheckpointError, ConfigError, TrainingError
from sslengine.optim.schedules import Schedule
from sslengine.precision import Precision


class Scaled(NamedTuple):
    """A schedule times a constant."""

    schedule: Schedule
    scale: float = 1.0


class _Target(NamedTuple):
    group: int
    key: str
    scale: float


class ScheduledOptimizer:
    def __init__(self, inner: Optimizer, plan: Sequence[Mapping[str, Scaled]]) -> None:
        """`plan`: for each parameter group, {"lr" | "weight_decay" | "momentum": schedule}."""
        self.inner = inner
        self.options_view = OptionsView(self)
        self._timetables = {interval: _timetable(plan, interval) for interval in ("step", "epoch")}
        self._check_keys()
        for interval in self._timetables:
            self._set(interval, 0.0)
        scheduled = [
            {"params", *(_stored_as(key, group) for key in keys)}
            for keys, group in zip(plan, inner.param_groups, strict=True)
        ]
        self._constants = [
            {key: value for key, value in group.items() if key not in keys}
            for group, keys in zip(inner.param_groups, scheduled, strict=True)
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    def schedule(self, where: float) -> None:
        """Set what changes with every step."""
        if not 0.0 <= where < 1.0:
            raise TrainingError(_out_of_range(where))
        self._set("step", where)

    def on_epoch(self, where: float) -> None:
        """Set what changes with every epoch; `where` is that of the epoch's first step.

        After the last epoch (a test phase with where = 1) there is nothing left to set.
        """
        if 0.0 <= where < 1.0:
            self._set("epoch", where)

    def _set(self, interval: str, where: float) -> None:
        groups = self.inner.param_groups
        for schedule, targets in self._timetables[interval].items():
            value = schedule.value(where)
            for index, key, scale in targets:
                group = groups[index]
                if key == "momentum" and "betas" in group:
                    group["betas"] = (value, group["betas"][1])
                else:
                    group[key] = value * scale

    def prepare(self, precision: Precision, model: nn.Module) -> None:
        """Once, before training."""
        self.inner = precision.prepare(model, self.inner)

    def step(self, precision: Precision) -> None:
        precision.step(self.inner)

    def learning_rates(self) -> dict[str, float]:
        """For the log."""
        return {"lr": self.options_view.lr}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """torch's own opens a range of its profiler, which costs more than the rest of it."""
        own = getattr(self.inner.zero_grad, "__func__", None) is not Optimizer.zero_grad
        if own or not set_to_none:
            self.inner.zero_grad(set_to_none)
            return
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """That of the torch optimizer. Collective with ZeRO: whole on rank 0, empty elsewhere."""
        return whole_state(self.inner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "param_groups" not in state:
            raise CheckpointError(
                "the checkpoint holds no state of the optimizer. To start from its weights alone, "
                "name it in MODEL.WEIGHTS_INIT.PARAMS_FILE."
            )
        saved = state["param_groups"]
        self._check_fits(saved)
        groups = [{**old, **new} for old, new in zip(saved, self._constants, strict=True)]
        # ZeRO empties the state it is given of other ranks' shares: hence the copy.
        own = [parameter for group in self.inner.param_groups for parameter in group["params"]]
        indices = [index for group in saved for index in group["params"]]
        parameters = dict(zip(indices, own, strict=True))
        values = {
            index: _fitting(each, parameters[index]) for index, each in state["state"].items()
        }
        self.inner.load_state_dict({"state": values, "param_groups": groups})

    def _check_keys(self) -> None:
        for targets in (each for table in self._timetables.values() for each in table.values()):
            for index, key, _ in targets:
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
                f"{_describe(mine)}. The model, what is frozen in it, or OPTIMIZER's settings "
                f"of parameter groups have changed since."
            )
        for key in ("momentum", "betas"):
            if (key in saved[0]) != (key in mine[0]):
                raise CheckpointError(
                    f"the checkpoint was written by another kind of optimizer than this run's "
                    f"{type(self.inner).__name__}: only one of them has {key}. Set OPTIMIZER.name "
                    f"as it was, or start from the weights alone (MODEL.WEIGHTS_INIT)."
                )


def _fitting(state: Any, parameter: Tensor) -> Any:
    """What is as large as the parameter is sharded if the parameter is; else whole."""
    if not isinstance(state, Mapping):  # ZeRO: of another rank's share
        return state
    return {
        key: like(value, parameter)
        if isinstance(value, Tensor) and value.shape == parameter.shape and key != "step"
        else value
        for key, value in state.items()
    }


class OptionsView:
    """`options_view.lr`: one number; where groups differ, the largest over them."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by copy and pickle, before there is an optimizer
            raise AttributeError(name)
        values = [group[name] for group in self._optimizer.param_groups if name in group]
        if not values:
            raise AttributeError(f"the optimizer has no option {name!r}")
        return max(values)


def _timetable(
    plan: Sequence[Mapping[str, Scaled]], interval: str
) -> dict[Schedule, list[_Target]]:
    """What each schedule sets: a schedule that several groups share is computed once."""
    table: dict[Schedule, list[_Target]] = {}
    for index, keys in enumerate(plan):
        for key, (schedule, scale) in keys.items():
            if schedule.interval == interval:
                table.setdefault(schedule, []).append(_Target(index, key, scale))
    return table


def _stored_as(key: str, group: Mapping[str, Any]) -> str:
    """Adam's momentum is the first of its betas."""
    return "betas" if key == "momentum" and "betas" in group else key


def _describe(groups: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{group.get('name', 'unnamed')} ({len(group['params'])})" for group in groups]
    return f"{sum(len(group['params']) for group in groups)} parameters: {', '.join(parts)}"


def _out_of_range(where: float) -> str:
    return (
        f"an optimizer step at where = {where:.6g}; training is the range from 0 to less than 1.\n"
        f"  Likely causes: a run that was resumed with fewer epochs or iterations than it had "
        f"done; a dataset, batch size or number of processes that changed between the runs, "
        f"and with it the number of steps; a loop that runs on after the last step."
    )
