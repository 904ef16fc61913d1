"""Every hook that ships observes: with it and without it a run is the same, bit by bit."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from sslengine import hooks
from sslengine.hooks.events import EVENTS, Hook
from sslengine.launch.cli import main
from sslengine.testing import Contract
from tests.contracts.cases import Of, cases


def on(*overrides: str, **without: str) -> Of:
    return Of(overrides=overrides, more={"by_config": True, "without": without})


ACTS = {"does_not_change_the_run": "it is there to change what is trained"}
REFUSED = {"ranks_stay_equal_sharded": "it is refused there, by config/sharding.py"}
FROZEN = dict.fromkeys(
    ("ranks_stay_equal_sharded", "ranks_stay_equal_with_manual_reduction"),
    "what it freezes does not change in so few steps",
)
SINCE_THE_START = {"resumes_its_state": "it tells of this process alone"}
HOOKS: dict[str, Of] = {
    "IterationTimer": on("config.HOOKS.ITERATION_TIMER=true", **SINCE_THE_START),
    "LogPerfStats": on("config.HOOKS.PERF_STATS.MONITOR_PERF_STATS=true"),
    "LogComplexity": on("config.HOOKS.MODEL_COMPLEXITY={COMPUTE_COMPLEXITY:true,INPUT_SHAPE:[3,16,16]}",
        **REFUSED),
    "ReportUnreachedParameters": on("config.DISTRIBUTED.DETECT_ANOMALOUS_PARAMS=true", **REFUSED),
    "FreezeParameters": on(
        "config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP=[[trunk.conv1.weight,2]]",
        "config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP=[[trunk.bn1.weight,1]]", **ACTS, **FROZEN),
    "ClipGradients": on("config.MODEL.GRAD_CLIP={USE_GRAD_CLIP:true,MAX_NORM:0.1}", **ACTS),
    "PreciseBatchNorm": on("config.HOOKS.PRECISE_BN={ENABLED:true,NUM_ITERS:2}", **ACTS, **REFUSED),
    "EvaluateLoss": on("config.HOOKS.EVALUATE_LOSS.SETS=[TRAIN]"),
    "OnlineEval": on(
        "config.HOOKS.ONLINE_EVAL={EVERY:1,WHAT:[label_free],IMAGES:8,TOPK:[1]}",
        **REFUSED),
    "LogCollapse": on("config.HOOKS.COLLAPSE_SIGNS=true"),
    "LogMemoryPeaks": on("config.HOOKS.MEMORY_SUMMARY.LOG_PEAKS=true"),
    "TensorBoardHistograms": on(
        "config.HOOKS.TENSORBOARD_SETUP={USE_TENSORBOARD:true,LOG_PARAMS:true}"),
}  # fmt: skip
# Of a GPU; of a model that paints; that ends the run when it has what it wants; that changes what
# meters see.
ELSEWHERE = {"LogGpus", "LogGpuMemory", "SavePictures", "ProfileSteps", "MaskAbsentClasses",
             "LogGradientNorm"}  # fmt: skip
QUICK = ("is_added_by_its_options", "does_not_change_the_run")
SLOW = [name for name in Contract("hook", "any:Hook").promises if name not in QUICK]


@pytest.mark.parametrize(("tried", "promise"), cases("hook", HOOKS, SLOW))
def test_hook(tried: Contract, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    for path in Path(hooks.__file__).parent.glob("*.py"):
        importlib.import_module(f"sslengine.hooks.{path.stem}")
    ours = {each.__name__ for each in Hook.__subclasses__() if "sslengine.hooks" in each.__module__}
    assert ours - HOOKS.keys() - ELSEWHERE == set()


class PutsAtEveryEvent(Hook):
    """One metric for each event, called after it."""


def _put(event: str) -> Any:
    def method(self: Hook, task: Any) -> None:
        task.storage.put_scalar(f"at_{event}", task.iteration, window=1)

    return method


for _event in EVENTS:
    setattr(PutsAtEveryEvent, _event, _put(_event))


def test_what_a_hook_puts_at_any_event_is_in_its_record(tmp_path: Path) -> None:
    """By the command, with a test after each epoch of two steps."""
    data = (
        "{DATA_SOURCES:[synthetic],DATA_LIMIT:4,BATCHSIZE_PER_REPLICA:4,DEFAULT_GRAY_IMG_SIZE:16,"
    )
    data += "TRANSFORMS:[{name:ImgReplicatePil},{name:ToTensor}],COLLATE_FUNCTION:simclr_collator}"
    values = {
        "LOG_FREQUENCY": 1, "DATA.NUM_DATALOADER_WORKERS": 0, "DATA.TRAIN.DATA_LIMIT": 8,
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 4, "OPTIMIZER.num_epochs": 2, "TEST_MODEL": "true",
        "DISTRIBUTED.NUM_PROC_PER_NODE": 1, "MACHINE.DEVICE": "cpu", "DATA.TEST": data,
        "HOOKS.EXTRA": f"['{__name__}:PutsAtEveryEvent']", "CHECKPOINT.DIR": f"'{tmp_path}/run'",
    }  # fmt: skip
    arguments = [f"config.{key}={value}" for key, value in values.items()]
    assert main(["config=testing/small", *arguments]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [each for each in records if (each["kind"], each["split"]) == ("step", "train")]
    assert [each["iteration"] for each in steps] == [1, 2, 3, 4]
    of_step = ("step_start", "forward", "loss_and_meter", "backward", "update")
    for number, record in enumerate(steps):
        assert [record[f"at_on_{event}"] for event in of_step] == [number] * 5
        assert record["at_on_step"] == number + 1
    phases = [each for each in records if each["kind"] == "phase" and each["split"] == "train"]
    assert [each["at_on_phase_end"] for each in phases] == [2, 4]
    assert [each["at_on_phase_start"] for each in steps[::2]] == [0, 2]
    assert steps[0]["at_on_start"] == 0
    assert [each["at_on_end"] for each in records if each["kind"] == "end"] == [4]
