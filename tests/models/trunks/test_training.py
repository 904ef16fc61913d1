"""Every trunk through the engine: it trains, and goes on bit by bit where it was stopped."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.task.runs import train

VIT = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 32, "NUM_HEADS": 4, "MLP_DIM": 32}
DROPS = {"DROP_PATH_RATE": 0.3, "DROPOUT_RATE": 0.1}
TRUNKS: list[dict[str, Any]] = [
    {
        "NAME": "regnet",
        "REGNET": {"depth": 2, "w_0": 32, "w_a": 0.0, "w_m": 2.0, "group_width": 8},
    },
    {
        "NAME": "xcit",
        "XCIT": {"IMAGE_SIZE": 32, "HIDDEN_DIM": 32, "NUM_LAYERS": 2, "NUM_HEADS": 4, **DROPS},
    },
    {
        "NAME": "swin_transformer",
        "SWIN_TRANSFORMER": {
            "IMAGE_SIZE": 32,
            "EMBED_DIM": 16,
            "DEPTHS": [2, 2],
            "NUM_HEADS": [2, 2],
            "WINDOW_SIZE": 4,
            **DROPS,
        },
    },
    {
        "NAME": "convnext",
        "CONVNEXT": {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 16, 32], "DROP_PATH_RATE": 0.3},
    },
    {
        "NAME": "convit",
        "CONVIT": {"N_GPSA_LAYERS": 1},
        "VISION_TRANSFORMERS": {**VIT, **DROPS},
    },
    {
        "NAME": "beit",
        "BEIT": {
            "IMAGE_SIZE": 32,
            "NUM_LAYERS": 2,
            "HIDDEN_DIM": 32,
            "NUM_HEADS": 4,
            "QKV_BIAS": True,
            "USE_REL_POS_BIAS": True,
            "USE_SHARED_REL_POS_BIAS": True,
            "INIT_VALUES": 0.1,
            **DROPS,
        },
    },
]
PICTURES = [
    {"name": "ImgReplicatePil", "num_times": 2},
    {"name": "RandomResizedCrop", "size": 32},
    {"name": "ToTensor"},
]


def changes(trunk: dict[str, Any]) -> dict[str, Any]:
    return {"MODEL__TRUNK": trunk, "DATA__TRAIN__TRANSFORMS": PICTURES}


@pytest.mark.parametrize("trunk", TRUNKS, ids=lambda trunk: trunk["NAME"])
def test_trains_and_goes_on_bit_by_bit(trunk: dict[str, Any], tmp_path: Path) -> None:
    task = assert_goes_on_bit_by_bit(tmp_path, **changes(trunk))
    torch.manual_seed(0)
    for name, parameter in task.base_model.trunk.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter).all(), name


def _weights_on_ranks(folder: str, trunk: dict[str, Any]) -> dict[str, torch.Tensor]:
    distributed = {"BACKEND": "gloo", "NUM_PROC_PER_NODE": 2}
    with warnings.catch_warnings():
        # Gradients of depthwise convolutions lie in memory as their patches did; torch copies them.
        warnings.filterwarnings("ignore", "Grad strides do not match")
        task = train(Path(folder), [], **changes(trunk), DISTRIBUTED=distributed)
    return dict(task.base_model.state_dict())


@pytest.mark.parametrize(
    "trunk",
    [trunk for trunk in TRUNKS if trunk["NAME"] in ("xcit", "convit")],
    ids=lambda trunk: trunk["NAME"],
)
def test_two_ranks_stay_equal(trunk: dict[str, Any], two_ranks: RankPool, tmp_path: Path) -> None:
    first, second = two_ranks.run(_weights_on_ranks, str(tmp_path), trunk)
    assert first.keys() == second.keys()
    learned = [name for name in first if "running" not in name]
    assert all(torch.equal(first[name], second[name]) for name in learned)
