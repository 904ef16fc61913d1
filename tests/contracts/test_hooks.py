"""Every hook that ships observes: with it and without it a run is the same, bit by bit."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sslengine import hooks
from sslengine.hooks.events import Hook
from sslengine.testing import suite_of
from sslengine.testing.promises import Suite
from tests.contracts.cases import Of, cases


def on(*overrides: str, **without: str) -> Of:
    return Of(overrides=overrides, more={"by_config": True, "without": without})


ACTS = {"does_not_change_the_run": "it is there to change what is trained"}
REFUSED = {"ranks_stay_equal_sharded": "it is refused there, by config/requirements.py"}
FROZEN = {"ranks_stay_equal_sharded": "what it freezes does not change in so few steps"}
HOOKS: dict[str, Of] = {
    "LogPerfStats": on("config.HOOKS.PERF_STATS.MONITOR_PERF_STATS=true"),
    "LogComplexity": on("config.HOOKS.MODEL_COMPLEXITY={COMPUTE_COMPLEXITY:true,INPUT_SHAPE:[3,16,16]}",
        **REFUSED),
    "ReportUnreachedParameters": on("config.DISTRIBUTED.DETECT_ANOMALOUS_PARAMS=true", **REFUSED),
    "FreezeParameters": on(
        "config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP=[[trunk.conv1.weight,2]]",
        "config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP=[[trunk.bn1.weight,1]]", **ACTS, **FROZEN),
    "ClipGradients": on("config.MODEL.GRAD_CLIP={USE_GRAD_CLIP:true,MAX_NORM:0.1}", **ACTS),
    "PreciseBatchNorm": on("config.HOOKS.PRECISE_BN={ENABLED:true,NUM_ITERS:2}", **ACTS, **REFUSED),
    "OnlineEval": on(
        "config.HOOKS.ONLINE_EVAL={EVERY:1,WHAT:[label_free],IMAGES:8,TOPK:[1]}",
        **REFUSED),
    "LogCollapse": on("config.HOOKS.COLLAPSE_SIGNS=true"),
    "TensorBoardHistograms": on(
        "config.HOOKS.TENSORBOARD_SETUP={USE_TENSORBOARD:true,LOG_PARAMS:true}"),
}  # fmt: skip
# Of a GPU; that ends the run when it has what it wants; that changes what
# meters see.
ELSEWHERE = {"LogGpus", "LogGpuMemory", "ProfileSteps", "MaskAbsentClasses",
             "LogGradientNorm"}  # fmt: skip
SLOW = [n for n in suite_of("hook", "any:Hook").promises if n != "does_not_change_the_run"]


@pytest.mark.parametrize(("tried", "promise"), cases("hook", HOOKS, SLOW))
def test_hook(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    for path in Path(hooks.__file__).parent.glob("*.py"):
        importlib.import_module(f"sslengine.hooks.{path.stem}")
    ours = {each.__name__ for each in Hook.__subclasses__() if "sslengine.hooks" in each.__module__}
    assert ours - HOOKS.keys() - ELSEWHERE == set()
