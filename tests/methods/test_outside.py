"""Methods that a user might write, one file each, and one that ships and owns its network:
trained, on ranks, killed and resumed."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.command.check import main as check
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.testing.promises import Suite
from tests import warm
from tests.contracts.cases import Of, cases
from tests.engine.runs import make_task
from tests.engine.sharded import (
    SHARDED,
    SMALL_VIT,
    SYNC_BN,
    assert_close,
    needs_shards,
    on_ranks,
    run,
)
from tests.integration.command import ROOT, same_weights
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.tail import slow_but

HERE = "tests.methods.outside"
CONFIGS = Path(__file__).parent / "outside" / "configs"
TWO_SIZES = [
    {"name": "ImgPilToMultiCrop", "total_num_crops": 4, "num_crops": [2, 2], "size_crops": [8, 4],
     "crop_scales": [[0.3, 1], [0.1, 0.5]]},
    {"name": "ToTensor"},
    {"name": "MaskedImageModeling", "patch_size": 2, "pred_ratio_mean": [0.0, 0.4],
     "pred_ratio_var": [0.0, 0.2]},
]  # fmt: skip
GLOBAL = ["global_views", {"feat_names": ["lastBLK"], "head_index": 0, "additional_keys": ["mask"]}]
LOCAL = ["local_views", {"feat_names": ["lastCLS"], "head_index": 0}]
HEAD = {"in_dim": 18, "num_clusters": [9], "hidden_dim": 12, "bottleneck_dim": 6}
OWN = {"MODEL__HEAD__PARAMS": [], "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator"}
RUNS: dict[str, dict[str, Any]] = {
    "nnclr": {
        **SMALL_VIT, **SYNC_BN, **OWN,
        "OPTIMIZER__param_schedulers__lr__start_value": 0.01,
        "LOSS": {"name": "nnclr", "dim": 7, "hidden": 12, "predictor_hidden": 12, "rows": 24,
                 "temperature": 1.0},
    },
    "dino": {
        **SMALL_VIT, **OWN,
        "LOSS": {"name": f"{HERE}.dino:DINO", "prototypes": 9, "hidden": 12, "width": 6, "momentum": 0.8},
    },
    "clip_like": {
        **SMALL_VIT,
        "LOSS": {"name": f"{HERE}.clip_like:CLIPLike", "CLIPLike": {"temperature": 0.3}},
    },
    "ibot": {
        "DATA__TRAIN__TRANSFORMS": TWO_SIZES,
        "DATA__TRAIN__COLLATE_FUNCTION": "ibot_multicrop_masking_collator",
        "DATA__TRAIN__INPUT_KEY_NAMES": ["global_views", "local_views", "mask"],
        "MODEL__TRUNK": {
            "NAME": f"{HERE}.ibot:MaskedVisionTransformer",
            "VISION_TRANSFORMERS": {
                **SMALL_VIT["MODEL__TRUNK"]["VISION_TRANSFORMERS"], "PATCH_SIZE": 2,
            },
        },
        "MODEL__MULTI_INPUT_HEAD_MAPPING": [GLOBAL, LOCAL],
        "MODEL__HEAD__PARAMS": [[f"{HERE}.ibot:TokenHead", HEAD]],
        "LOSS": {"name": f"{HERE}.ibot:IBOT",
                 "IBOT": {"scores": 9, "momentum": 0.8, "warmup_epochs": 2}},
    },
}  # fmt: skip
EQUAL = "ranks_equal_one_process"
SLOW = ("accumulates", "first_loss_is_close_in_bfloat16", "ranks_stay_equal", "ranks_stay_equal_sharded", "ranks_equal_one_process")  # fmt: skip
OWN_HEADS = ("config.MODEL.HEAD.PARAMS=[]", "config.DATA.TRAIN.COLLATE_FUNCTION=multicrop_collator")
VIT = "{IMAGE_SIZE:16,PATCH_SIZE:4,NUM_LAYERS:2,NUM_HEADS:2,HIDDEN_DIM:16,MLP_DIM:16}"
CROPS = "{name:ImgPilToMultiCrop,total_num_crops:4,num_crops:[2,2],size_crops:[16,8],crop_scales:[[0.3,1],[0.1,0.5]]}"
MASKS = "{name:MaskedImageModeling,patch_size:4,pred_ratio_mean:[0.0,0.4],pred_ratio_var:[0.0,0.2]}"
CONTRACTS = {
    f"{HERE}.dino:DINO": Of({"prototypes": 6, "hidden": 12, "width": 8}, OWN_HEADS, {"also": [EQUAL]}),
    f"{HERE}.captions:Captions": Of(
        {"words": 26, "dim": 8},
        (*OWN_HEADS, *(f"config.DATA.TRAIN.{each}" for each in (
            "DATA_SOURCES=[shapes]", "LABEL_SOURCES=[]", "FIELDS=[caption_vector]")),
        ), {"also": [EQUAL]},
    ),
    f"{HERE}.colours:Colours": Of(overrides=(
        "config=quickstart/mae", "config.DATA.TRAIN.TRANSFORMS.0.size=16",
        f"config.MODEL.TRUNK.VISION_TRANSFORMERS={VIT}",
        "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=4",
    ), more={"also": [EQUAL]}),
    f"{HERE}.clip_like:CLIPLike": Of(
        more={"also": [EQUAL], "without": {"ranks_stay_equal_sharded": "its temperature is a scalar"}}
    ),
    f"{HERE}.ibot:IBOT": Of(
        {"scores": 6, "momentum": 0.9},
        (
            f"config.DATA.TRAIN.TRANSFORMS=[{CROPS},{{name:ToTensor}},{MASKS}]",
            "config.DATA.TRAIN.COLLATE_FUNCTION=ibot_multicrop_masking_collator",
            "config.DATA.TRAIN.INPUT_KEY_NAMES=[global_views,local_views,mask]",
            f"config.MODEL.TRUNK.NAME={HERE}.ibot:MaskedVisionTransformer",
            f"config.MODEL.TRUNK.VISION_TRANSFORMERS={VIT}",
            "config.MODEL.MULTI_INPUT_HEAD_MAPPING=[[global_views,{feat_names:[lastBLK],head_index:0,"
            "additional_keys:[mask]}],[local_views,{feat_names:[lastCLS],head_index:0}]]",
            f"config.MODEL.HEAD.PARAMS=[['{HERE}.ibot:TokenHead',"
            "{in_dim:16,num_clusters:[6],hidden_dim:12,bottleneck_dim:6}]]",
        ),
        {"also": [EQUAL]},
    ),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "by hand": {"DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": True},
    "accumulated": {"OPTIMIZER__accumulate": 2, "DATA__TRAIN__DATA_LIMIT": 32},
    "sharded": SHARDED,
}
# Not NNCLR: its contract (tests/contracts) compares steps in the same ways.
OFTEN = {"dino": "sharded", "clip_like": "accumulated", "ibot": "sharded"}
OUTSIDE = ("dino", "clip_like", "ibot")
# A temperature that is a scalar cannot be sharded: tests/integration/test_loss_parameters.py
EACH = [
    pytest.param(
        method, way, id=f"{method}, {way}",
        marks=[
            *([needs_shards] if way == "sharded" else []),
            *([] if OFTEN[method] == way else [pytest.mark.slow]),
        ],
    )
    for method in OFTEN
    for way in WAYS
    if (method, way) != ("clip_like", "sharded")
]  # fmt: skip


@pytest.mark.parametrize(("tried", "promise"), cases("method", CONTRACTS, SLOW))
def test_what_every_method_promises(tried: Suite, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "way"), EACH)
def test_two_ranks_end_where_one_process_does(
    two_ranks: RankPool, tmp_path: Path, method: str, way: str
) -> None:
    changes = {"OPTIMIZER__num_epochs": 1, **RUNS[method], **WAYS[way]}
    alone = run(tmp_path, changes)
    for each in two_ranks.run(run, tmp_path, changes):
        assert_close(each, alone, rtol=1e-4, atol=1e-6)
    first = make_task(tmp_path, [], **on_ranks(changes, 1))
    for then, now in ((first.loss, alone.loss_state), (first.base_model, alone.weights)):
        state = then.state_dict()
        still = {name for name in now if torch.equal(state[name], now[name])}
        assert not {name for name in still if not name.endswith("weight_g")}  # a fixed length


def _resumed(folder: Path, changes: dict[str, Any]) -> None:
    assert_goes_on_bit_by_bit(folder / str(rank()), **on_ranks(changes, world_size(), 4))


@pytest.mark.parametrize("method", slow_but(["nnclr"], RUNS))
def test_resumed_on_two_ranks_it_is_the_same_run_bit_by_bit(
    two_ranks: RankPool, tmp_path: Path, method: str
) -> None:
    two_ranks.run(_resumed, tmp_path, RUNS[method])


@pytest.mark.slow
@pytest.mark.parametrize("method", OUTSIDE)
def test_a_step_stays_on_the_gpu(tmp_path: Path, method: str) -> None:
    fake_cuda = pytest.importorskip("tests.fake_cuda", reason="this torch has no FakeTensorMode")
    small = [f"config.{path}" for path in SMALL]
    arguments = [f"config={method}", *small, "config.LOG_FREQUENCY=1000"]
    config = resolve(arguments, [str(CONFIGS)]).config
    fake_cuda.two_steps(
        SelfSupervisionTask(config, tmp_path, torch.device("cpu"), hooks=[], services=Services())
    )


def test_the_example_of_the_page_is_that_of_a_file() -> None:
    page = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    for name in ("dino", "colours", "captions"):
        code = (Path(__file__).parent / "outside" / f"{name}.py").read_text(encoding="utf-8")
        assert f"`{name}.py`:\n\n```python\n{code}```" in page


SMALL = (
    "DATA.TRAIN.DATA_LIMIT=64", "DATA.TRAIN.BATCHSIZE_PER_REPLICA=16", "DATA.NUM_DATALOADER_WORKERS=0",
    "OPTIMIZER.num_epochs=2", "CHECKPOINT.CHECKPOINT_ITER_FREQUENCY=3",
)  # fmt: skip


def _command(method: str, folder: Path, *more: str) -> int:
    arguments = [f"config.{each}" for each in (*SMALL, f"CHECKPOINT.DIR={folder}", *more)]
    config = method if method in OUTSIDE else f"quickstart/{method}"
    done = warm.run(
        [sys.executable, "-m", "sslengine", "--config-dir", str(CONFIGS), f"config={config}",
         *arguments],
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def test_the_command_logs_what_a_method_puts(tmp_path: Path) -> None:
    assert _command("nnclr", tmp_path) == 0
    told = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert any(0 <= each.get("cosine_of_neighbours", -1) <= 1 for each in told)
    assert check([str(CONFIGS)]) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", RUNS)
def test_the_command_killed_and_started_again(method: str, tmp_path: Path) -> None:
    one, two = tmp_path / "whole", tmp_path / "killed"
    assert _command(method, one) == 0
    dies = f"HOOKS.EXTRA=[{HERE}.dying:DieOnce]"
    assert _command(method, two, dies) == -signal.SIGKILL
    assert _command(method, two, dies) == 0
    assert same_weights(one, two)
