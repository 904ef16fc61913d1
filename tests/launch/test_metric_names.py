"""Metrics that a config names: short forms, and names that the run will not report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sslengine.dotted import full_metric_name, leaves
from sslengine.errors import ConfigError
from sslengine.launch.cli import run_all
from sslengine.launch.preflight import expect_known_metrics
from tests.config.recipes import resolved
from tests.hooks.test_online_eval import ONLINE, SHAPES, trained

ALL: dict[str, Any] = {
    **SHAPES, "OPTIMIZER__num_epochs": 1, "HOOKS__ONLINE_EVAL": ONLINE,
}  # fmt: skip
LABELLED: dict[str, Any] = {
    "TEST_MODEL": True,
    "METERS": {
        "names": ["accuracy_list_meter", "mean_ap_list_meter"],
        "accuracy_list_meter": {"topk_values": [1, 5], "meter_names": ["res5", "lr 0.1"],
                                "num_meters": 2},
    },
}  # fmt: skip
WHERE = "config.CHECKPOINT.BEST.METRIC"


def test_short_names() -> None:
    assert full_metric_name("online.knn20") == "train.online.knn_20"
    assert full_metric_name("online.knn_5") == "train.online.knn_5"
    assert full_metric_name("train.online.knn1") == "train.online.knn_1"
    assert full_metric_name("online.rankme") == "train.online.rankme"
    assert full_metric_name("test.knn20") == "test.knn20"


@pytest.mark.slow
def test_all_that_a_run_reports_may_be_named(tmp_path: Path) -> None:
    """The results in the manifest of a run's checkpoint: each is a known name."""
    trained(tmp_path, **ALL)
    (path,) = (tmp_path / "checkpoints").glob("*.json")
    names = [name for name, _ in leaves(json.loads(path.read_text())["results"])]
    assert {"train.online.knn_5", "train.trunk_rank"} <= {*names}
    for name in names:
        expect_known_metrics(resolved(**ALL, CHECKPOINT__BEST={"METRIC": name}).config)


@pytest.mark.parametrize(
    ("changes", "name", "hint"),
    [
        (ALL, "online.knn2", "Did you mean 'train.online.knn_"),
        (ALL, "online.knn_2O", "Did you mean"),
        (ALL, "train.online.rnkme", "Did you mean 'train.online.rankme'"),
        (SHAPES, "online.knn20", "Known: "),  # HOOKS.ONLINE_EVAL is off
        (ALL, "test.loss", "no test phases"),
        (LABELLED, "test.accuracy_list_meter.top_1.0", "Did you mean"),
        (LABELLED, "test.accuracy_list_meter.top_2.res5", "top_1.res5'"),
        (LABELLED, "test.accuracy_list_meter.top_1", "top_1.res5'"),
        (LABELLED, "test.mean_ap_list_meter.map.0", "Did you mean 'test.mean_ap_list_meter.mAP.0'"),
    ],
)
def test_a_name_that_the_run_will_not_report(
    changes: dict[str, Any], name: str, hint: str, tmp_path: Path
) -> None:
    """Nothing is launched."""
    run = resolved(**changes, CHECKPOINT={"BEST": {"METRIC": name}, "DIR": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=f"{WHERE}: ") as caught:
        run_all([run])
    assert hint in str(caught.value)
    assert not (tmp_path / "run").exists()
    stopping = resolved(**changes, HOOKS__EARLY_STOPPING={"MONITOR": name})
    with pytest.raises(ConfigError, match=r"config.HOOKS.EARLY_STOPPING.MONITOR: "):
        expect_known_metrics(stopping.config)
