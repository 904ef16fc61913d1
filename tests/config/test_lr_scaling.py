"""Learning rates by the batch size and the number of ranks, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from sslengine.config.lr_scaling import scale_schedule, scale_steps, scale_to_ranks
from sslengine.config.show import show
from sslengine.errors import ConfigError
from sslengine.registry import SCHEDULERS, register_scheduler
from tests.config.recipes import resolved


def _schedule(name: str, kind: str = "linear", base: float = 0.3, **values: Any) -> dict[str, Any]:
    scaling = {
        "auto_scale": True, "base_value": base, "base_lr_batch_size": 256, "scaling_type": kind,
    }  # fmt: skip
    return {"name": name, "auto_lr_scaling": scaling, **values}


def _scaled(schedule: dict[str, Any], global_batch: int, nodes: int = 1) -> dict[str, Any]:
    return scale_schedule(schedule, global_batch, global_batch // nodes)


@pytest.mark.parametrize(("kind", "batch", "peak"), [("linear", 1024, 1.2), ("sqrt", 1024, 0.6)])
@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("constant", {"value": 9.0}, "value"),
        ("linear", {"start_value": 0.0, "end_value": 9.0}, "end_value"),
        ("inverse_sqrt", {"start_value": 9.0}, "start_value"),
        ("polynomial", {"base_value": 9.0}, "base_value"),
        ("step_with_fixed_gamma", {"base_value": 9.0}, "base_value"),
        ("cosine", {"start_value": 9.0, "end_value": 0.0}, "start_value"),
        ("cosine_warm_restart", {"start_value": 9.0, "end_value": 0.0}, "start_value"),
    ],
)
def test_the_peak_of_each_kind(
    name: str, values: dict[str, Any], key: str, kind: str, batch: int, peak: float
) -> None:
    assert _scaled(_schedule(name, kind, **values), batch)[key] == pytest.approx(peak)


def test_a_cosine_keeps_its_ratio() -> None:
    scaled = _scaled(_schedule("cosine", start_value=0.12, end_value=0.00012, base=0.03), 1024)
    assert scaled["start_value"] == pytest.approx(0.12)
    assert scaled["end_value"] == pytest.approx(0.00012)


def test_a_cosine_from_zero_has_its_peak_at_the_end() -> None:
    scaled = _scaled(_schedule("cosine", start_value=0.0, end_value=1.0), 512)
    assert (scaled["start_value"], scaled["end_value"]) == (0.0, pytest.approx(0.6))


@pytest.mark.parametrize("name", ["multistep", "step"])
def test_steps_keep_their_proportions(name: str) -> None:
    scaled = _scaled(_schedule(name, values=[0.1, 0.01, 0.005], base=0.1), 512)
    assert scaled["values"] == pytest.approx([0.2, 0.02, 0.01])


def _recipe(kind: str = "linear") -> dict[str, Any]:
    """SimCLR's published schedule for 8 nodes of 8 x 64 images."""
    return _schedule(
        "composite", kind,
        schedulers=[{"name": "linear", "start_value": 0.6, "end_value": 4.8},
                    {"name": "cosine", "start_value": 4.8, "end_value": 0.0}],
        lengths=[0.1, 0.9], interval_scaling=["rescaled", "fixed"],
    )  # fmt: skip


def test_the_published_batch_gives_the_published_schedule() -> None:
    scaled = _scaled(_recipe(), 4096, nodes=8)
    assert scaled == _recipe()


def test_the_warm_up_begins_at_what_one_node_would_use() -> None:
    warmup = _scaled(_recipe(), 2048, nodes=4)["schedulers"][0]
    assert warmup["start_value"] == pytest.approx(0.3 * 512 / 256)
    assert warmup["end_value"] == pytest.approx(2.4)


@pytest.mark.parametrize("nodes", [1, 8])
def test_a_warm_up_from_zero_begins_at_zero(nodes: int) -> None:
    recipe = _recipe()
    recipe["schedulers"][0]["start_value"] = 0.0
    warmup, cosine = _scaled(recipe, 2048, nodes)["schedulers"]
    assert warmup["start_value"] == 0.0
    assert warmup["end_value"] == cosine["start_value"] == pytest.approx(2.4)


def test_a_warm_up_may_begin_where_it_is_written() -> None:
    recipe = _recipe()
    recipe["schedulers"][0]["start_value"] = 0.3
    recipe["auto_lr_scaling"]["warmup_start"] = "as_written"
    warmup = _scaled(recipe, 2048, nodes=8)["schedulers"][0]
    assert (warmup["start_value"], warmup["end_value"]) == (0.3, pytest.approx(2.4))
    recipe["auto_lr_scaling"]["warmup_start"] = "one_node"  # VISSL's rule
    warmup = _scaled(recipe, 2048, nodes=4)["schedulers"][0]
    assert warmup["start_value"] == pytest.approx(0.6)


def test_on_one_node_the_warm_up_stays_in_its_own_proportion() -> None:
    warmup, cosine = _scaled(_recipe(), 512)["schedulers"]
    assert warmup["start_value"] == pytest.approx(0.6 * 0.6 / 4.8)
    assert warmup["end_value"] == cosine["start_value"] == pytest.approx(0.6)


def test_sqrt_scaling_never_turns_a_warm_up_round() -> None:
    for batch, nodes in ((4096, 1), (4096, 8), (128, 1)):
        warmup = _scaled(_recipe("sqrt"), batch, nodes)["schedulers"][0]
        assert warmup["start_value"] < warmup["end_value"]


def test_a_warm_up_that_does_not_rise_is_dropped_and_its_time_given_to_the_rest() -> None:
    recipe = _recipe()
    recipe["schedulers"][0] = {"name": "linear", "start_value": 4.8, "end_value": 4.8}
    recipe["schedulers"].append({"name": "constant", "value": 1.0})
    recipe["lengths"] = [0.2, 0.6, 0.2]
    recipe["interval_scaling"] = ["rescaled", "fixed", "fixed"]
    scaled = _scaled(recipe, 512)
    assert [part["name"] for part in scaled["schedulers"]] == ["cosine", "constant"]
    assert scaled["lengths"] == pytest.approx([0.75, 0.25])
    assert scaled["interval_scaling"] == ["fixed", "fixed"]


def test_what_is_left_alone_is_no_composite_any_more() -> None:
    recipe = _recipe()
    recipe["schedulers"][0]["start_value"] = 4.8
    scaled = _scaled(recipe, 512)
    assert scaled["name"] == "cosine"
    assert scaled["start_value"] == pytest.approx(0.6)
    assert scaled["schedulers"] == scaled["lengths"] == scaled["interval_scaling"] == []


def test_the_schedule_given_is_not_changed() -> None:
    recipe = _recipe()
    _scaled(recipe, 512)
    assert recipe == _recipe()


def test_a_schedule_without_a_known_peak() -> None:
    with pytest.raises(ConfigError, match="peak.*auto_scale: false"):
        _scaled(_schedule("my_own"), 512)


def test_nothing_but_falling_warm_ups() -> None:
    recipe = _recipe()
    recipe["schedulers"] = [{"name": "linear", "start_value": 4.8, "end_value": 1.0}]
    recipe["lengths"], recipe["interval_scaling"] = [1.0], ["fixed"]
    with pytest.raises(ConfigError, match="no part of the composite schedule remains"):
        _scaled(recipe, 512)


# ---- reference world size


RANKS = "DISTRIBUTED__NUM_PROC_PER_NODE"
LR = "OPTIMIZER__param_schedulers__lr"

WARMUP = {
    "name": "composite",
    "schedulers": [{"name": "linear", "start_value": 0.01, "end_value": 0.4},
                   {"name": "cosine", "start_value": 0.4, "end_value": 0.0}],
    "lengths": [0.1, 0.9],
    "interval_scaling": ["rescaled", "rescaled"],
    "update_interval": "step",
}  # fmt: skip


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
    own = {"name": "tests.config.test_lr_scaling:by_value",
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
