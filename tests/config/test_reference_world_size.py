from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from sslengine.config.lr_scaling import scale_steps, scale_to_ranks
from sslengine.config.show import show
from sslengine.errors import ConfigError
from sslengine.registry import SCHEDULERS, register_scheduler
from tests.config.recipes import resolved

RANKS = "DISTRIBUTED__NUM_PROC_PER_NODE"
LR = "OPTIMIZER__param_schedulers__lr"

WARMUP = {
    "name": "composite",
    "schedulers": [
        {"name": "linear", "start_value": 0.01, "end_value": 0.4},
        {"name": "cosine", "start_value": 0.4, "end_value": 0.0},
    ],
    "lengths": [0.1, 0.9],
    "interval_scaling": ["rescaled", "rescaled"],
    "update_interval": "step",
}


def _lr(**changes: Any) -> Any:
    return OmegaConf.to_container(resolved(**changes).config.OPTIMIZER.param_schedulers.lr)


@pytest.mark.parametrize(
    ("schedule", "key", "expected"),
    [
        ({"name": "constant", "value": 0.4}, "value", 0.1),
        ({"name": "cosine", "start_value": 0.4, "end_value": 0.04}, "end_value", 0.01),
        ({"name": "multistep", "values": [0.4, 0.04], "milestones": [1]}, "values", [0.1, 0.01]),
        ({"name": "multistep", "values": [0.4, 0.04], "milestones": [1]}, "milestones", [1]),
        ({"name": "polynomial", "base_value": 0.4, "power": 2.0}, "base_value", 0.1),
        ({"name": "polynomial", "base_value": 0.4, "power": 2.0}, "power", 2.0),
        (WARMUP, "lengths", [0.1, 0.9]),
    ],
)
def test_rates_follow_the_ranks_and_shares_of_training_stay(
    schedule: dict[str, Any], key: str, expected: Any
) -> None:
    given = {**schedule, "update_interval": schedule.get("update_interval")}
    assert _lr(REFERENCE_WORLD_SIZE=8, **{RANKS: 2, LR: given})[key] == pytest.approx(expected)


def test_a_warm_up_is_scaled_as_a_whole() -> None:
    first, second = _lr(REFERENCE_WORLD_SIZE=8, **{RANKS: 2, LR: WARMUP})["schedulers"]
    assert (first["start_value"], first["end_value"]) == pytest.approx((0.0025, 0.1))
    assert second["start_value"] == pytest.approx(0.1)


COUNTED: dict[str, Any] = {
    "OPTIMIZER__num_iterations": 1000,
    "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 50,
    "MODEL__TEMP_FROZEN_PARAMS_ITER_MAP": [["module.heads.0.clf.0.weight", 30]],
    "LOG_FREQUENCY": 10,
    "OPTIMIZER__num_epochs": None,
}


def test_step_counts_go_the_other_way_and_epochs_stay() -> None:
    config = resolved(REFERENCE_WORLD_SIZE=2, **COUNTED, **{RANKS: 4}).config
    assert config.OPTIMIZER.num_iterations == 500
    assert config.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY == 25
    assert config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP == [["module.heads.0.clf.0.weight", 15]]
    assert config.LOG_FREQUENCY == 10
    assert config.OPTIMIZER.param_schedulers.lr.start_value == 0.2
    assert config.OPTIMIZER.param_schedulers.lr_head.start_value == 0.2
    assert config.REFERENCE_WORLD_SIZE == 4


def test_a_methods_own_counts_follow() -> None:
    changes: dict[str, Any] = {
        "LOSS": {"name": "swav_loss", "swav_loss": {
            "temp_hard_assignment_iters": 40, "queue": {"start_iter": 20}}},
        "MODEL__HEAD__PARAMS": [["swav_head", {"dims": [32, 8], "use_bn": False, "num_clusters": [4]}]],
        "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator",
    }  # fmt: skip
    config = resolved(REFERENCE_WORLD_SIZE=1, **changes, **{RANKS: 4}).config
    swav = config.LOSS.swav_loss
    assert (swav.temp_hard_assignment_iters, swav.queue.start_iter) == (10, 5)


@pytest.mark.parametrize("reference", [0, 2])
def test_without_it_or_on_as_many_ranks_nothing_changes(reference: int) -> None:
    with_key = resolved(REFERENCE_WORLD_SIZE=reference, **COUNTED, **{RANKS: 2}).config
    without = resolved(**COUNTED, **{RANKS: 2}).config
    assert {**with_key, "REFERENCE_WORLD_SIZE": 0} == dict(without)


def test_what_never_counts_stays() -> None:
    config = resolved(REFERENCE_WORLD_SIZE=2, **{RANKS: 4}).config
    assert (config.OPTIMIZER.num_epochs, config.OPTIMIZER.num_iterations) == (2, None)
    assert config.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY == -1
    assert scale_steps(1, 1, 16) == 1  # not 0, which means another thing


def test_show_tells_why_and_what_it_shows_can_be_run_again() -> None:
    run = resolved(REFERENCE_WORLD_SIZE=2, **COUNTED, **{RANKS: 4})
    why = "# derived: REFERENCE_WORLD_SIZE, 4 ranks instead of 2"
    told = {line.split(":")[0].strip() for line in show(run).splitlines() if line.endswith(why)}
    assert told == {
        "REFERENCE_WORLD_SIZE",
        "TEMP_FROZEN_PARAMS_ITER_MAP",
        "num_iterations",
        "start_value",
        "CHECKPOINT_ITER_FREQUENCY",
    }
    assert list(scale_to_ranks(run.config)) == []


@pytest.mark.parametrize("key", ["lr", "lr_head"])
def test_two_scalings_are_refused(key: str) -> None:
    changes = {
        f"OPTIMIZER__param_schedulers__{key}__auto_lr_scaling__auto_scale": True,
        "OPTIMIZER__head_optimizer_params__use_different_lr": True,
    }
    with pytest.raises(ConfigError, match=rf"schedulers.{key}.auto_lr_scaling.auto_scale both"):
        resolved(REFERENCE_WORLD_SIZE=1, **changes)


def test_a_scheduler_that_names_no_rate_is_refused() -> None:
    if "test_by_peak" not in SCHEDULERS:
        register_scheduler("test_by_peak")(_by_peak)
    own = {"name": "test_by_peak", "args": {"peak": 1.0}, "update_interval": "step"}
    resolved(**{LR: own})
    with pytest.raises(ConfigError, match="cannot scale the scheduler 'test_by_peak'"):
        resolved(REFERENCE_WORLD_SIZE=1, **{RANKS: 2, LR: own})


def test_a_scheduler_of_ones_own_is_scaled_by_its_arguments_names() -> None:
    own = {"name": "tests.config.test_reference_world_size:by_value",
           "args": {"end_value": 2.0, "shape": 3.0}, "value": 1.0}  # fmt: skip
    scaled = _lr(REFERENCE_WORLD_SIZE=1, **{RANKS: 2, LR: {**own, "update_interval": "step"}})
    assert (scaled["value"], scaled["args"]) == (2.0, {"end_value": 4.0, "shape": 3.0})


def by_value(value: float, end_value: float, shape: float) -> Any:
    return lambda where: value


def _by_peak(peak: float) -> Any:
    return lambda where: peak


# ---- there and back

BASE = resolved(**COUNTED, **{LR: WARMUP}).config


def _moved(config: DictConfig, ranks: int) -> DictConfig:
    moved = OmegaConf.create(config)
    OmegaConf.set_readonly(moved, False)
    moved.DISTRIBUTED.NUM_PROC_PER_NODE = ranks
    for path, value in list(scale_to_ranks(moved)):
        OmegaConf.update(moved, path, value, merge=False)
    return moved


def _rates(config: DictConfig) -> list[float]:
    parts = config.OPTIMIZER.param_schedulers.lr.schedulers
    return [part[key] for part in parts for key in ("start_value", "end_value")]


@pytest.mark.slow
@given(
    st.integers(1, 512), st.integers(1, 512), st.integers(1, 10**6), st.integers(1, 10**6)
)  # fmt: skip
def test_there_and_back_is_where_it_began(here: int, there: int, total: int, every: int) -> None:
    began = _moved(BASE, here)
    began.REFERENCE_WORLD_SIZE = here
    began.OPTIMIZER.num_iterations, began.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY = total, every
    away = _moved(began, there)
    back = _moved(away, here)
    assert _rates(back) == pytest.approx(_rates(began), rel=1e-12)
    assert _rates(away) == pytest.approx([r * there / here for r in _rates(began)], rel=1e-12)
    for section, key in (
        ("OPTIMIZER", "num_iterations"),
        ("CHECKPOINT", "CHECKPOINT_ITER_FREQUENCY"),
    ):
        first, second, third = (each[section][key] for each in (began, away, back))
        # As many images as before, but for half a step; or a single step.
        assert second == 1 or abs(second * there - first * here) <= there / 2
        if second > 1:
            assert abs(third - first) <= 0.5 * there / here + 0.5
    assert (there, here) == (away.REFERENCE_WORLD_SIZE, back.REFERENCE_WORLD_SIZE)
