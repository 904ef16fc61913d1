"""Schedules whose parts come from several places. The expected ones are written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from sslengine import catalog  # noqa: F401
from sslengine.config.compose import Assignment, Composition
from sslengine.config.files import Layer
from sslengine.config.resolve import Resolved, freeze, resolve, resolve_dict
from sslengine.config.sections import read
from sslengine.config.show import show
from sslengine.errors import ConfigError
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.schedules import build_schedule
from sslengine.registry import SCHEDULERS
from tests.config.recipes import recipe

LR = "config.OPTIMIZER.param_schedulers.lr"
QUICKSTART = "config=quickstart/simclr"  # AdamW; linear 0 to 0.002, cosine 0.002 to 0


def lr(run: Resolved) -> dict[str, Any]:
    """The schedule without what is not set."""
    node = OmegaConf.to_container(run.config.OPTIMIZER.param_schedulers.lr)
    assert isinstance(node, dict)
    return {key: value for key, value in node.items() if value not in (None, [], {})}


def given(*trees: dict[str, Any]) -> Resolved:
    """Files one after another."""
    layers = [Layer(f"{index}.yaml", {"config": tree}) for index, tree in enumerate(trees)]
    return freeze(Composition(layers, [], "test"))


def schedule(**values: Any) -> dict[str, Any]:
    return {"OPTIMIZER": {"param_schedulers": {"lr": values}}}


@pytest.mark.parametrize("name", ["adamw", "lars"])
def test_vissls_learning_rate_is_for_sgd_alone(name: str) -> None:
    tree = recipe(OPTIMIZER={"name": name, "num_epochs": 2})
    with pytest.raises(
        ConfigError, match=rf"^{LR}: {name} requires a schedule; .* from 0.1, is for"
    ):
        resolve_dict(tree)
    tree["OPTIMIZER"]["name"] = "sgd"
    assert lr(resolve_dict(tree))["values"] == [0.1, 0.01, 0.001]


def test_heads_with_a_rate_of_their_own() -> None:
    tree = recipe(
        OPTIMIZER={"name": "adamw", "num_epochs": 2,
                   "param_schedulers": {"lr": {"name": "constant", "value": 0.001}},
                   "head_optimizer_params": {"use_different_lr": True}},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=rf"^{LR}_head: adamw requires a schedule"):
        resolve_dict(tree)


def test_one_of_several_optimizers() -> None:
    own = {"parameters": ["*"], "losses": ["loss"], "name": "adamw"}
    step = "multi_optimizer_train_step"
    tree = recipe(TRAINER={"TRAIN_STEP_NAME": step, step: {"OPTIMIZERS": {"all": own}}})
    with pytest.raises(ConfigError, match=r"OPTIMIZERS\.all\.param_schedulers\.lr: adamw requires"):
        resolve_dict(tree)


def test_a_later_name_replaces_the_schedule() -> None:
    with pytest.raises(ConfigError, match=rf"^{LR}.start_value: cosine requires"):
        resolve([QUICKSTART, f"{LR}.name=cosine"])
    values = [f"{LR}.name=cosine", f"{LR}.start_value=0.001", f"{LR}.end_value=0.0"]
    whole = f"{LR}={{name: cosine, start_value: 0.001, end_value: 0.0}}"
    for arguments in (values, [whole]):
        found = lr(resolve([QUICKSTART, *arguments]))
        expected = {"name": "cosine", "start_value": 0.001, "end_value": 0.0,
                    "update_interval": "step"}  # fmt: skip
        assert found | expected == found
        assert not {"schedulers", "lengths", "interval_scaling"} & found.keys()


def test_so_does_a_later_file_and_for_sgd() -> None:
    base = recipe(
        OPTIMIZER__param_schedulers={"lr": {"name": "composite",
                                            "schedulers": [{"name": "linear", "start_value": 0.0,
                                                            "end_value": 0.3},
                                                           {"name": "cosine", "start_value": 0.3,
                                                            "end_value": 0.0}],
                                            "lengths": [0.5, 0.5]}},
    )  # fmt: skip
    found = lr(given(base, schedule(name="polynomial", base_value=0.2, power=2.0)))
    assert (found["name"], found["base_value"], "lengths" in found) == ("polynomial", 0.2, False)
    with pytest.raises(ConfigError, match=rf"^{LR}.start_value: cosine requires"):
        given(base, schedule(name="cosine"))


@pytest.mark.parametrize(("key", "value"), [("value", 0.1), ("value", 0.01), ("power", 2)])
def test_arguments_that_the_schedule_does_not_know(key: str, value: float) -> None:
    belongs = f"it is a key of the scheduler {'constant' if key == 'value' else 'polynomial'}; here"
    text = rf"^{LR}.{key}: {belongs} composite is chosen, .*schedulers.* {LR}.peak sets"
    with pytest.raises(ConfigError, match=text):
        resolve([QUICKSTART, f"{LR}.{key}={value}"])


def test_a_files_arguments_of_another_schedule_are_dropped_with_a_warning() -> None:
    """VISSL ignores them."""
    for run in (
        given(recipe(), schedule(lengths=[0.1, 0.9])),
        resolve_dict(recipe(OPTIMIZER__param_schedulers__lr__lengths=[0.1, 0.9])),
    ):
        assert lr(run) == lr(resolve_dict(recipe()))
        assert any(each.startswith(f"{LR}.lengths has no effect") for each in run.warnings)
    with pytest.raises(ConfigError, match=rf"^{LR}\.lenghts: "):
        given(recipe(), schedule(lenghts=[0.1, 0.9]))


@pytest.mark.parametrize("changes", [{}, {"name": "multistep", "values": [0.2, 0.1],
                                          "milestones": [1]}])  # fmt: skip
def test_the_config_that_a_run_writes_can_be_run_again(changes: dict[str, Any]) -> None:
    first = given(recipe(), schedule(**changes)) if changes else resolve_dict(recipe())
    tree = yaml.safe_load(OmegaConf.to_yaml(first.config))
    assert lr(resolve_dict(tree)) == lr(first)
    # Earlier versions wrote all arguments of all schedulers, with VISSL's defaults or empty.
    node = tree["OPTIMIZER"]["param_schedulers"]["lr"]
    node |= {"value": 0.1, "milestones": node.get("milestones") or [30, 60], "power": None,
             "is_adaptive": None, "schedulers": []}  # fmt: skip
    assert lr(resolve_dict(tree)) == lr(first)


# ---- the largest value


def test_one_key_scales_the_whole_schedule() -> None:
    run = resolve([QUICKSTART, f"{LR}.peak=0.0005"])
    found = lr(run)["schedulers"]
    assert found == [
        {"name": "linear", "start_value": 0.0, "end_value": 0.0005},
        {"name": "cosine", "start_value": 0.0005, "end_value": 0.0},
    ]
    told = show(run)
    assert "peak: 0.0005" in told
    assert "# derived: peak 0.0005" in told
    # Heads follow; and what the run writes says the same when it is run again.
    assert run.config.OPTIMIZER.param_schedulers.lr_head.schedulers[1].start_value == 0.0005
    again = resolve_dict(yaml.safe_load(OmegaConf.to_yaml(run.config)))
    assert lr(again) == lr(run)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"peak": 0}, rf"{LR}.peak: expected a number above 0, got 0"),
        ({"peak": 0.1, "auto_lr_scaling": {"auto_scale": True}}, rf"{LR}.peak: auto_lr_scaling s"),
        (
            {"peak": 0.1, "start_value": 0.0},
            rf"{LR}.peak: the schedule 'cosine' has no value other",
        ),
    ],
)
def test_where_there_is_none(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        given(recipe(), schedule(**changes))


_COSINE = {"start_value": 0.5, "end_value": 0.005}
EVERY_SCHEDULE: dict[str, dict[str, Any]] = {
    "constant": {"value": 0.5},
    "linear": {"start_value": 0.0, "end_value": 0.5},
    "cosine": _COSINE,
    "cosine_warm_restart": {**_COSINE, "restart_interval_length": 0.5},
    "multistep": {"values": [0.5, 0.05], "milestones": [2]},
    "step": {"values": [0.5, 0.05]},
    "step_with_fixed_gamma": {"base_value": 0.5, "num_decays": 2, "gamma": 0.1},
    "polynomial": {"base_value": 0.5, "power": 2.0},
    # It is meant for a part that begins after the warm-up.
    "inverse_sqrt": {"start_value": 0.5, "warmup_interval_length": 0.2},
    "composite": {
        "schedulers": [
            {"name": "linear", "start_value": 0.1, "end_value": 0.5},
            {"name": "cosine", **_COSINE},
        ],
        "lengths": [0.2, 0.8],
        "interval_scaling": ["rescaled", "rescaled"],
    },
}


@pytest.mark.parametrize(
    ("name", "optimizer", "scaled"),
    [
        *(pytest.param(name, "sgd", n % 2 == 0, marks=pytest.mark.slow if n % 3 else ())
          for n, name in enumerate(SCHEDULERS.names())
          if SCHEDULERS.owner(name).startswith("sslengine.")),
        *(("composite", optimizer, scaled)
          for optimizer in ("adamw", "lars") for scaled in (False, True)),
    ],
)  # fmt: skip
def test_the_largest_rate_of_a_run_is_peak(name: str, optimizer: str, scaled: bool) -> None:
    """Of whatever schedule, optimizer and batch size: seen in the curve that the run follows."""
    scaling = {"auto_scale": scaled, "base_value": 0.3, "base_lr_batch_size": 7}
    values = {"name": name, "auto_lr_scaling": scaling, **EVERY_SCHEDULE[name]}
    base = recipe(OPTIMIZER__name=optimizer, OPTIMIZER__num_epochs=4,
                  OPTIMIZER__param_schedulers={"lr": values})  # fmt: skip
    first = 0.2 if name == "inverse_sqrt" else 0.0
    shapes = []
    for peak in (0.125, 0.0625):
        run = given(base, schedule(peak=peak))
        curve = build_schedule(read(run.config, OptimizerOptions).schedulers()["lr"], 4).value
        rates = [curve(first + (0.999 - first) * n / 1000) for n in range(1001)]
        assert max(rates) == pytest.approx(peak, rel=2e-3)
        shapes.append([rate / peak for rate in rates])
    assert shapes[0] == pytest.approx(shapes[1])
    again = resolve_dict(yaml.safe_load(OmegaConf.to_yaml(run.config)))
    assert lr(again) == lr(run)


_SCALED = {"name": "cosine", **_COSINE, "auto_lr_scaling": {"auto_scale": True}}


@pytest.mark.parametrize(
    ("base", "typed", "text"),
    [
        (_SCALED, "start_value=0.2", r"start_value: has no effect, because .*lr.auto_lr_scaling sets"),
        ({**_COSINE, "name": "cosine", "peak": 0.1}, "start_value=0.2", r"because .*\.lr\.peak sets"),
        ({"name": "polynomial", "base_value": 0.5, "power": 2.0, "peak": 1.0}, "base_value=0.2",
         "base_value: has no effect"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_set_the_largest(base: dict[str, Any], typed: str, text: str) -> None:
    layers = [
        Layer("base.yaml", {"config": recipe()}),
        Layer("r.yaml", {"config": schedule(**base)}),
    ]
    key, _, value = typed.partition("=")
    typed_here = Assignment(f"{LR}.{key}", float(value), typed)
    with pytest.raises(ConfigError, match=text):
        freeze(Composition(layers, [typed_here], "test"))
    # Where nothing else sets it, or it comes with its schedule's name, it does.
    free = {key: each for key, each in base.items() if key not in ("peak", "auto_lr_scaling")}
    layers[1] = Layer("r.yaml", {"config": schedule(**free)})
    assert lr(freeze(Composition(layers, [typed_here], "test")))[key] == float(value)


def test_weight_decay_does_not_follow_the_batch_size() -> None:
    tree = recipe(OPTIMIZER__param_schedulers={"weight_decay": _SCALED})
    with pytest.raises(ConfigError, match="weight_decay.auto_lr_scaling: only"):
        resolve_dict(tree)


def test_a_part_whose_value_the_batch_size_sets() -> None:
    scaled = f"{LR}.auto_lr_scaling.auto_scale=true"
    text = rf"start_value: auto_lr_scaling sets the largest value .* set {LR}.peak, or .*base_value"
    with pytest.raises(ConfigError, match=text):
        resolve([QUICKSTART, scaled, f"{LR}.schedulers.1.start_value=0.001"])
