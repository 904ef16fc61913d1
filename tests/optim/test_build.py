"""From options to an optimizer that trains, stops, resumes and is split over ranks."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from sslengine.errors import CheckpointError, ConfigError, TrainingError
from sslengine.optim.build import ScaledSchedule, ScheduledOptimizer, build_optimizer
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.schedules import Schedule, SchedulerOptions, schedule

CPU = torch.device("cpu")
LINEAR = schedule(name="linear", start_value=0.1, end_value=0.3)
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "nesterov": True},
    {"name": "sgd", "momentum": 0.0},
    {"name": "sgd", "dampening": 0.5},
    {"name": "sgd_fsdp", "use_larc": True},
    {"name": "adam", "amsgrad": True},
    {"name": "adam", "use_larc": True},
    {"name": "adamw"},
    {"name": "lars", "exclude_bias_and_norm": True},
    {"name": "rmsprop", "centered": True},
    {"name": "muon"},
    {"name": "timm_adamw", "use_larc": True},
]


def small_model() -> nn.Module:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU())
    return nn.ModuleDict({"trunk": trunk, "heads": nn.ModuleList([nn.Linear(5, 3)])}).double()


def options(lr: SchedulerOptions = LINEAR, **settings: Any) -> OptimizerOptions:
    """With a schedule of lr."""
    made = OptimizerOptions(num_epochs=10, **settings)
    made.param_schedulers = dataclasses.replace(made.param_schedulers, lr=lr)
    assert list(made.check()) == []
    return made


def train(model: Any, optimizer: ScheduledOptimizer, steps: range, total: int = 10) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(7, 6, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model["heads"][0](model["trunk"](images)).square().sum().backward()
        optimizer.schedule(step / total)
        optimizer.inner.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def fresh(settings: dict[str, Any]) -> tuple[nn.Module, ScheduledOptimizer]:
    model = small_model()
    return model, build_optimizer(model, options(**settings), CPU, num_epochs=10)


def by_name(optimizer: ScheduledOptimizer) -> dict[str, dict[str, Any]]:
    """Groups that were joined because they are alike, under each of their names."""
    return {name: group for group in optimizer.param_groups for name in group["name"].split(" + ")}


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
def test_a_resumed_run_goes_on_to_the_bit(settings: dict[str, Any]) -> None:
    model, optimizer = fresh(settings)
    train(model, optimizer, range(3))
    state, saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    train(model, optimizer, range(3, 7))

    resumed, again = fresh(settings)
    resumed.load_state_dict(saved)
    again.load_state_dict(state)
    train(resumed, again, range(3, 7))
    assert all(map(torch.equal, weights(resumed), weights(model)))
    assert not any(map(torch.equal, weights(model), weights(small_model())))


@pytest.mark.parametrize("name", ["nmuon", "timm_adamw", "adan", "lion"])
def test_an_optimizer_of_timms_makes_the_steps_that_it_makes_in_a_loop_of_its_own(
    name: str,
) -> None:
    settings = {"weight_decay": 0.1, "momentum": 0.8}
    model, ours = fresh({"name": name, "regularize_bn": True, **settings})
    plain = small_model()
    groups = [{"params": [*plain.parameters()]}]
    opt = name.removeprefix("timm_")
    theirs = timm.optim.create_optimizer_v2(groups, opt=opt, lr=0.1, **settings)
    train(model, ours, range(3))
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(7, 6, generator=generator, dtype=torch.float64)
        theirs.zero_grad()
        plain["heads"][0](plain["trunk"](images)).square().sum().backward()
        theirs.param_groups[0]["lr"] = 0.1 + 0.2 * step / 10
        theirs.step()
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-12, atol=1e-14)


def test_a_checkpoint_of_the_unfused_form_continues_in_the_fused_one() -> None:
    """As from one kind of device to another."""
    runs = [fresh({"name": "adam", "args": {"fused": False}}), fresh({"name": "adam"})]
    (model, unfused), (resumed, fused) = runs
    train(model, unfused, range(3))
    resumed.load_state_dict(model.state_dict())
    fused.load_state_dict(copy.deepcopy(unfused.state_dict()))
    assert [group["fused"] for group in fused.param_groups] == [True] * len(fused.param_groups)
    for each, optimizer in runs:
        train(each, optimizer, range(3, 6))
    torch.testing.assert_close(weights(resumed), weights(model), rtol=1e-12, atol=1e-14)


def test_fused_where_torch_has_it() -> None:
    def form(device: str = "cpu", **settings: Any) -> Any:
        optimizer = build_optimizer(small_model(), options(**settings), torch.device(device), 10)
        return optimizer.param_groups[0].get("fused")

    assert form(name="sgd") is form(name="adamw") is form(name="lars") is True
    assert form(name="sgd", use_larc=True) is True
    assert not form(name="rmsprop")
    assert not form(name="sgd", args={"foreach": True})
    assert not form(name="sgd", args={"fused": False})
    assert not form(name="sgd", dampening=0.1)
    assert not form(device="meta", name="sgd")


def test_groups_that_are_alike_are_one() -> None:
    """Every group costs each step a few kernels."""
    model = small_model()
    names = [group["name"] for group in build_optimizer(model, options(), CPU, 10).param_groups]
    assert names == ["trunk + heads", "trunk without decay"]
    groups = build_optimizer(model, options(), CPU, 10).param_groups
    held = [parameter for group in groups for parameter in group["params"]]
    assert {id(each) for each in held} == {id(each) for each in model.parameters()}
    assert len(held) == len(list(model.parameters()))


def test_heads_with_their_own_settings() -> None:
    made = options()
    made.param_schedulers.lr_head = schedule(name="constant", value=7.0)
    made.head_optimizer_params.use_different_lr = True
    made.head_optimizer_params.use_different_wd = True
    made.head_optimizer_params.weight_decay = 0.5
    optimizer = build_optimizer(small_model(), made, CPU, 10)
    optimizer.schedule(0.5)
    groups = by_name(optimizer)
    assert (groups["trunk"]["lr"], groups["heads"]["lr"]) == (pytest.approx(0.2), 7.0)
    assert (groups["trunk"]["weight_decay"], groups["heads"]["weight_decay"]) == (1e-4, 0.5)


@pytest.mark.parametrize("own", [False, True])
def test_scheduled_weight_decay(own: bool) -> None:
    made = options(regularize_bias=False)
    made.param_schedulers.weight_decay = schedule(name="cosine", start_value=0.04, end_value=0.4)
    made.head_optimizer_params.use_different_wd = own
    optimizer = build_optimizer(small_model(), made, CPU, 10)
    optimizer.schedule(0.5)
    groups = by_name(optimizer)
    assert groups["trunk"]["weight_decay"] == pytest.approx(0.22)
    assert groups["heads"]["weight_decay"] == pytest.approx(1e-4 if own else 0.22)
    assert groups["trunk without decay"]["weight_decay"] == 0.0
    assert groups["heads without decay"]["weight_decay"] == 0.0


def test_scheduled_momentum() -> None:
    made = options(name="adamw")
    made.param_schedulers.momentum = LINEAR
    optimizer = build_optimizer(small_model(), made, CPU, 10)
    optimizer.schedule(0.5)
    assert optimizer.options_view.betas == (pytest.approx(0.2), 0.999)


def test_milestones_are_judged_by_the_length_of_the_run() -> None:
    steps = schedule(name="multistep", values=[1.0, 0.1], milestones=[3])
    made = options(steps, num_iterations=100)
    optimizer = build_optimizer(small_model(), made, CPU, num_epochs=4.5)
    for epoch, expected in ((2, 1.0), (3, 0.1)):
        optimizer.on_epoch(epoch / 4.5)
        assert optimizer.options_view.lr == expected
    shorter = build_optimizer(small_model(), made, CPU, num_epochs=2.5)
    shorter.on_epoch(0.9)
    assert shorter.options_view.lr == 1.0


def test_milestones_after_the_end_are_told(caplog: pytest.LogCaptureFixture) -> None:
    made = options()
    made.param_schedulers.lr = schedule(name="multistep", values=[1.0, 0.1], milestones=[30])
    build_optimizer(small_model(), made, CPU, 31)
    assert caplog.messages == []
    build_optimizer(small_model(), made, CPU, 2.5)
    (message,) = caplog.messages
    assert "[30]; the run ends with epoch 2.5" in message


@pytest.mark.parametrize("name", ["convnext_atto", "mobilenetv3_small_050", "resnet10t"])
def test_heads_have_their_own_settings_beside_the_last_layers_of_any_trunk(name: str) -> None:
    """Of timm's networks some of the trunk's layers are as deep as the classifier."""
    made = options(param_group_constructor="lr_decay", regularize_bias=False, regularize_bn=False)
    made.param_schedulers.lr_head = schedule(name="constant", value=7.0)
    made.head_optimizer_params.use_different_lr = True
    made.head_optimizer_params.use_different_wd = True
    made.head_optimizer_params.weight_decay = 0.5
    trunk = timm.create_model(name, num_classes=0)
    heads = nn.ModuleList([nn.Linear(5, 3)])
    optimizer = build_optimizer(nn.ModuleDict({"trunk": trunk, "heads": heads}), made, CPU, 10)
    optimizer.schedule(0.5)
    placed = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    assert all(placed[id(each)]["lr"] < 1 for each in trunk.parameters())
    assert [placed[id(each)]["lr"] for each in heads.parameters()] == [7.0, 7.0]
    assert [placed[id(each)]["weight_decay"] for each in heads.parameters()] == [0.5, 0.0]


# ---- with its schedules


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
