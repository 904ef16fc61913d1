from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sslengine.errors import CheckpointError, ConfigError, TrainingError
from sslengine.optim.build import ScaledSchedule, ScheduledOptimizer
from sslengine.optim.schedules import Schedule

RISING = Schedule(lambda where: 1.0 + where, "step")
FALLING = Schedule(lambda where: 1.0 - where, "epoch")


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape or (2,)))


def two_groups(**settings: Any) -> torch.optim.Optimizer:
    groups = [
        {"params": [parameter()], "name": "trunk"},
        {"params": [parameter(), parameter()], "name": "heads", "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.0, **{"momentum": 0.9, "weight_decay": 0.5, **settings})


def scheduled() -> ScheduledOptimizer:
    plan = [
        {"lr": ScaledSchedule(RISING), "weight_decay": ScaledSchedule(FALLING)},
        {
            "lr": ScaledSchedule(RISING, 10.0),
            "momentum": ScaledSchedule(Schedule(lambda where: where / 2, "step")),
        },
    ]
    return ScheduledOptimizer(two_groups(), plan)


def values(optimizer: ScheduledOptimizer, key: str) -> list[Any]:
    return [group[key] for group in optimizer.param_groups]


def test_steps_and_epochs_set_their_own() -> None:
    optimizer = scheduled()
    optimizer.schedule(0.5)
    assert values(optimizer, "lr") == [1.5, 15.0]
    assert values(optimizer, "momentum") == [0.9, 0.25]
    assert values(optimizer, "weight_decay") == [1.0, 0.0]
    optimizer.on_epoch(0.25)
    assert values(optimizer, "weight_decay") == [0.75, 0.0]
    assert values(optimizer, "lr") == [1.5, 15.0]


def test_what_a_hook_has_set_lasts_until_the_schedule_is_due_again() -> None:
    """Also where the schedule's value is the one of the step or epoch before."""
    optimizer = scheduled()
    for group in optimizer.param_groups:
        group.update(lr=7.0, weight_decay=8.0)
    optimizer.schedule(0.0)
    assert values(optimizer, "lr") == [1.0, 10.0]
    assert values(optimizer, "weight_decay") == [8.0, 8.0]
    optimizer.on_epoch(0.0)
    assert values(optimizer, "weight_decay") == [1.0, 8.0]  # that of the second has no schedule


def test_a_schedule_that_groups_share_is_computed_once() -> None:
    calls: list[float] = []

    def curve(where: float) -> float:
        calls.append(where)
        return 1.0

    schedule = Schedule(curve, "step")
    optimizer = ScheduledOptimizer(
        two_groups(), [{"lr": ScaledSchedule(schedule)}, {"lr": ScaledSchedule(schedule, 2.0)}]
    )
    calls.clear()
    optimizer.schedule(0.5)
    assert calls == [0.5]
    assert values(optimizer, "lr") == [1.0, 2.0]


@pytest.mark.parametrize("where", [1.0, 1.2, -0.1, float("nan")])
def test_a_step_outside_training_names_the_likely_causes(where: float) -> None:
    with pytest.raises(TrainingError, match="where = "):
        scheduled().schedule(where)


def test_options_view_is_one_number_where_groups_differ() -> None:
    view = scheduled().options_view
    assert view.lr == 10.0
    assert view.momentum == 0.9
    with pytest.raises(AttributeError, match="no option 'betas'"):
        _ = view.betas


def test_what_an_optimizer_does_not_have_cannot_be_scheduled() -> None:
    with pytest.raises(ConfigError, match=r"param_schedulers.momentum: Adagrad has no momentum"):
        ScheduledOptimizer(
            torch.optim.Adagrad([parameter()]), [{"momentum": ScaledSchedule(RISING)}]
        )


def test_a_checkpoint_brings_scheduled_values_and_the_config_the_others() -> None:
    first = scheduled()
    first.schedule(0.75)
    first.on_epoch(0.5)
    state = copy.deepcopy(first.state_dict())
    second = ScheduledOptimizer(
        two_groups(momentum=0.7, nesterov=True, foreach=False),
        [
            {"lr": ScaledSchedule(RISING), "weight_decay": ScaledSchedule(FALLING)},
            {"lr": ScaledSchedule(RISING, 10.0)},
        ],
    )
    second.load_state_dict(state)
    assert values(second, "lr") == [1.75, 17.5]
    assert values(second, "weight_decay") == [0.5, 0.0]
    assert values(second, "momentum") == [0.7, 0.7]
    assert values(second, "nesterov") == [True, True]
    assert values(second, "foreach") == [False, False]
    assert values(second, "name") == ["trunk", "heads"]
    second.schedule(0.0)  # the groups are other dicts now
    assert values(second, "lr") == [1.0, 10.0]


def test_a_checkpoint_of_another_optimizer_is_refused() -> None:
    state = scheduled().state_dict()
    one_group = torch.optim.SGD([{"params": [parameter()], "name": "model"}], lr=0.1, momentum=0.9)
    adam = torch.optim.Adam(two_groups().param_groups)
    for other, plan in ((one_group, [{"lr": ScaledSchedule(RISING)}]), (adam, [{}, {}])):
        optimizer = ScheduledOptimizer(other, plan)
        with pytest.raises(CheckpointError, match=r"\[1, 2\].*momentum"):
            optimizer.load_state_dict(state)
        with pytest.raises(CheckpointError, match="has no state of the optimizer"):
            optimizer.load_state_dict({})
