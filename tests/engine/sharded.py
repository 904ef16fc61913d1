"""Whole small sharded runs, beside the same run in one process: for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sslengine.distributed.ranks import world_size
from sslengine.distributed.sharding import is_sharded, whole
from sslengine.engine import loop
from sslengine.hooks.default import default_hooks
from sslengine.hooks.gradients import ClipGradients, FreezeParameters
from tests.config.recipes import resolved
from tests.engine.runs import Watch, make_task

SHARDED = {"TRAINER__TASK_NAME": "self_supervision_fsdp_task"}
needs_shards = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),  # as torch 2.6
    reason=f"torch {torch.__version__} has no FSDP2 on a CPU",
)
SMALL_VIT: dict[str, Any] = {
    "MODEL__TRUNK": {
        "NAME": "vision_transformer",
        "VISION_TRANSFORMERS": {
            "IMAGE_SIZE": 8, "PATCH_SIZE": 4, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 18,
            "MLP_DIM": 36,
        },
    },
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [18, 7]}]],
}  # fmt: skip
CROPS: dict[str, Any] = {
    "DATA__TRAIN__TRANSFORMS": [
        {"name": "ImgPilToMultiCrop", "total_num_crops": 3, "num_crops": [2, 1],
         "size_crops": [8, 4], "crop_scales": [[0.3, 1], [0.1, 0.5]]},
        {"name": "ToTensor"},
    ],
    "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator",
}  # fmt: skip
SYNC_BN = {"MODEL__SYNC_BN_CONFIG": {"CONVERT_BN_TO_SYNC_BN": True, "GROUP_SIZE": 0}}


class Outcome(NamedTuple):
    losses: list[float]
    weights: dict[str, Tensor]  # whole
    loss_state: dict[str, Tensor]
    held: int  # elements of parameters on this rank


def outcome(task: Any, watch: Watch) -> Outcome:
    """Collective: all get the whole."""
    held = sum(
        (each.to_local() if is_sharded(each) else each).numel()  # type: ignore[attr-defined]
        for each in task.base_model.parameters()
    )
    return Outcome(
        watch.losses, _whole(task.base_model.state_dict()), _whole(task.loss.state_dict()), held
    )


def _whole(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(each).clone() for name, each in state.items()}


def run(folder: Path, changes: dict[str, Any], global_batch: int = 8) -> Outcome:
    """With the same global batch on any number of ranks, and with the hooks on gradients."""
    watch, given = Watch(), on_ranks(changes, world_size(), global_batch)
    chosen = default_hooks(resolved(**given).config, folder)
    on_gradients = [each for each in chosen if isinstance(each, (ClipGradients, FreezeParameters))]
    task = make_task(folder, [*on_gradients, watch], **given)
    loop.run(task)
    return outcome(task, watch)


def on_ranks(changes: dict[str, Any], ranks: int, global_batch: int = 8) -> dict[str, Any]:
    return {
        **changes,
        "DISTRIBUTED__NUM_PROC_PER_NODE": ranks,
        "DATA__TRAIN__BATCHSIZE_PER_REPLICA": global_batch // ranks,
    }


def assert_close(got: Outcome, want: Outcome, rtol: float, atol: float) -> None:
    assert len(got.losses) == len(want.losses) >= 2
    torch.testing.assert_close(
        torch.tensor(got.losses), torch.tensor(want.losses), rtol=rtol, atol=atol
    )
    for one, two in ((got.weights, want.weights), (got.loss_state, want.loss_state)):
        assert one.keys() == two.keys()
        for name in two:
            torch.testing.assert_close(one[name], two[name], rtol=rtol, atol=atol, msg=None)
