"""Learning rates by the batch size, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sslengine.config.lr_scaling import scale_schedule
from sslengine.errors import ConfigError


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


def test_a_schedule_without_a_known_peak() -> None:
    with pytest.raises(ConfigError, match="peak.*auto_scale: false"):
        _scaled(_schedule("my_own"), 512)


def test_nothing_but_falling_warm_ups() -> None:
    recipe = _recipe()
    recipe["schedulers"] = [{"name": "linear", "start_value": 4.8, "end_value": 1.0}]
    recipe["lengths"], recipe["interval_scaling"] = [1.0], ["fixed"]
    with pytest.raises(ConfigError, match="no part of the composite schedule remains"):
        _scaled(recipe, 512)
