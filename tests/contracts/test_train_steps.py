"""Every train step that ships, by the example of docs/train_steps.md at a smaller size."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.registry import METERS, TRAIN_STEPS
from sslengine.testing.promises import Suite
from tests.contracts.cases import Of, cases, forgotten
from tests.contracts.test_methods import NOT_SHARDED, TINY

EQUAL = "ranks_equal_one_process"
WIDE = {"dims": [32, 8], "use_relu": True}
TWO_OPTIMIZERS = {
    name: {"parameters": [f"{name}*"], "losses": ["loss"], "name": "sgd", "momentum": 0.9,
           "param_schedulers": {"lr": {"name": "constant", "value": 0.01}}}
    for name in ("trunk", "heads")
}  # fmt: skip
PIRL = (
    "config.DATA.TRAIN.TRANSFORMS.0={name:ImgPilToPatchesAndImage,crop_size_image:16,"
    "crop_size_patches:96}",
    "config.MODEL.HEAD.PARAMS=[[[mlp,{dims:[32,8]}],[siamese_concat_view,{num_towers:9}],"
    "[mlp,{dims:[72,8]}]],[[mlp,{dims:[32,8]}]]]",
    "config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=4",
    "config.LOSS.nce_loss_with_memory.memory_params.embedding_dim=8",
)
LISTED = "config.DATA.TRAIN.TRANSFORMS=[{name:RandomResizedCrop,size:16},{name:ToTensor}]"


class GivesLosses(nn.Module):
    """As detectron2's models do, in test phases too."""

    def __init__(self, model: Any = None) -> None:
        super().__init__()
        self.encode, self.classify = nn.Linear(3 * 16 * 16, 8), nn.Linear(8, 4)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        features = self.encode(batch["data"].flatten(1))
        scores = self.classify(features).float()
        return {
            "class": F.cross_entropy(scores, batch["label"]),
            "size": 0.1 * features.float().square().mean(),
        }


class OwnsStep(GivesLosses):
    """As mmengine's models do."""

    def forward(self, data: Tensor, label: Tensor, mode: str) -> Any:  # type: ignore[override]
        losses = super().forward({"data": data, "label": label})
        return {"loss": sum(losses.values())} if mode == "loss" else losses["size"]


STEPS: dict[str, Of] = {
    "standard_train_step": Of(more={"also": [EQUAL]}),
    "gradcache_train_step": Of(
        {"CHUNK_SIZE": 3}, ("config.MODEL.TRUNK.RESNETS.NORM=LayerNorm",), {"also": [EQUAL]}),
    "many_heads_train_step": Of(
        overrides=("config.MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON=true",
                   "config.MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY=true")),
    "multi_optimizer_train_step": Of(
        {"OPTIMIZERS": TWO_OPTIMIZERS},
        more={"without": {"ranks_stay_equal_sharded": "refused: it makes several backward passes"}}),
    "multi_input_train_step": Of(overrides=("config=quickstart/pirl", *TINY, *PIRL),
                                 more={"without": {"tests_change_nothing": "the method's: see there"}}),
    "model_train_step": Of(
        overrides=(f"config.MODEL.BASE_MODEL_NAME={__name__}:OwnsStep", "config.LOSS.name=''", LISTED),
        more={"without": NOT_SHARDED}),
    "loss_dict_train_step": Of(
        overrides=(f"config.MODEL.BASE_MODEL_NAME={__name__}:GivesLosses", "config.LOSS.name=''",
                   LISTED), more={"without": NOT_SHARDED}),
}  # fmt: skip
METERS_SMALL = {
    "accuracy_list_meter": Of({"topk_values": [1, 3]}),
    "mean_ap_list_meter": Of({"num_classes": 7}),
    "precision_at_k_list_meter": Of({"topk_values": [1, 3]}),
    "recall_at_k_list_meter": Of({"topk_values": [1, 3]}),
}
SLOW = ("accumulates", "ranks_stay_equal_sharded", EQUAL,
        "trains_in_bfloat16", "first_loss_is_close_in_bfloat16")  # fmt: skip


@pytest.mark.parametrize(("tried", "promise"), cases("train_step", STEPS, SLOW))
def test_train_step(tried: Suite, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.parametrize(
    ("tried", "promise"),
    cases("meter", METERS_SMALL, (*SLOW, "resumes_bit_exactly", "ranks_stay_equal")),
)
def test_meter(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    assert forgotten(TRAIN_STEPS, STEPS) == []
    assert forgotten(METERS, METERS_SMALL) == []
