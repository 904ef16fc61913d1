"""Every method that ships, through its quickstart at a smaller size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sslengine.registry import LOSSES, MODELS
from sslengine.testing.promises import Suite
from sslengine.testing.run_suite import SYNC_BN
from tests.contracts.cases import Of, cases, forgotten
from tests.teachers import needed, with_scores

TINY = (
    "config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER=0.0625",
    "config.MODEL.TRUNK.RESNETS.STEM=small",
)
TINY_VIT = (
    "config.DATA.TRAIN.TRANSFORMS.0.size=16",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE=16",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.PATCH_SIZE=4",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS=1",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_HEADS=2",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM=16",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.MLP_DIM=16",
)
MASK_4 = (
    "config.DATA.TRAIN.TRANSFORMS.4.patch_size=4",
    "config.DATA.TRAIN.TRANSFORMS.4.cell_size=4",
)
SIDE = "config.DATA.TRAIN.TRANSFORMS.1.size=16"
CROPS = "config.DATA.TRAIN.TRANSFORMS.0.size_crops"
SAMPLE_INDEX = "config.DATA.TRAIN.LABEL_TYPE=sample_index"
EQUAL = "ranks_equal_one_process"
NO_TESTS = {"tests_change_nothing": "it has a row for each training sample, and refuses others"}
NOT_SHARDED = {"ranks_stay_equal_sharded": "refused: only trunks with heads can be sharded"}
SUMMED = "accumulation_equals_one_large_batch"


def of(quickstart: str, head: str, *overrides: str, component: str = "", **more: Any) -> Of:
    start = (f"config=quickstart/{quickstart}", *TINY, f"config.MODEL.HEAD.PARAMS=[{head}]")
    return Of(overrides=(*start, *overrides), more=more, component=component)


def _masked(quickstart: str) -> tuple[str, ...]:
    sizes = "IMAGE_SIZE=16 PATCH_SIZE=4 NUM_LAYERS=1 NUM_HEADS=2 HIDDEN_DIM=16 MLP_DIM=16"
    trunk = (f"config.MODEL.TRUNK.VISION_TRANSFORMERS.{each}" for each in sizes.split())
    return (f"config=quickstart/{quickstart}", *trunk, f"{CROPS}=[16,12]")


def own(
    name: str, *overrides: str, more: Mapping[str, Any] = {"also": [EQUAL]}, **arguments: int
) -> Of:
    """Of a method that owns its network: its batch norms are each rank's unless they are synced."""
    small = [f"config.LOSS.{name}.{key}={value}" for key, value in arguments.items()]
    synced = [f"config.{path}={value}" for path, value in SYNC_BN.items()]
    return Of({}, (f"config=quickstart/{name}", *TINY, *synced, *overrides, *small), more)


def _scores(method: str) -> Iterator[str]:
    """Of few patches, by small heads."""
    yield "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=4"
    keys = ["output_dim=6", *["patch_output_dim=6"] * (method != "ibot"), "head.use_bn=false", "head.hidden_dim=12",
            "head.bottleneck_dim=8"]  # fmt: skip
    yield from (f"config.LOSS.{method}_loss.{key}" for key in keys)


PROJECTOR = "[mlp,{dims:[32,8]}]"
DISTILLATION = "config=quickstart/distillation", *TINY, "config.DATA.TRAIN.TRANSFORMS.0.size=16"
METHODS: dict[str, Of] = {
    "simclr_info_nce_loss": of("simclr", PROJECTOR, SIDE, also=[EQUAL]),
    "multicrop_simclr_info_nce_loss": of(
        "swav", PROJECTOR, f"{CROPS}=[16,12]",
        "config.LOSS.multicrop_simclr_info_nce_loss.num_crops=4", also=[EQUAL],
    ),
    "moco_loss": of("moco", PROJECTOR, SIDE, "config.LOSS.moco_loss.embedding_dim=8",
                    "config.LOSS.moco_loss.queue_size=8", also=[EQUAL]),
    "byol_loss": of("byol", "[predictor_head,{dims:[32,16,8],predictor_dims:[8,16,8]}]", SIDE,
                    also=[EQUAL]),
    "simsiam_loss": of("simsiam", "[predictor_head,{dims:[32,16,8],predictor_dims:[8,4,8]}]", SIDE,
                       also=[EQUAL]),
    "barlow_twins_loss": of("barlow_twins", PROJECTOR, SIDE, also=[EQUAL]),
    "vicreg_loss": of("vicreg", PROJECTOR, SIDE, also=[EQUAL]),
    "swav_loss": of("swav", "[swav_head,{dims:[32,16,8],use_bn:true,num_clusters:[6]}]",
                    f"{CROPS}=[16,12]", also=[EQUAL]),
    "dino_loss": of(
        "dino", "[dino_head,{in_dim:32,num_clusters:[6],use_bn:true,hidden_dim:16,bottleneck_dim:8}]",
        f"{CROPS}=[16,12]", "config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP=[]", also=[EQUAL],
    ),
    "ibot_loss": Of(overrides=(
        *_masked("ibot"), *_scores("ibot"), "config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP=[]",
    ), more={"also": [EQUAL]}),
    "msn_loss": Of(overrides=(
        *_masked("msn"), "config.LOSS.msn_loss.head.hidden_dim=16", "config.LOSS.msn_loss.output_dim=8",
        "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=4", "config.LOSS.msn_loss.num_prototypes=6",
    ), more={"also": [EQUAL]}),
    # KoLeo looks for neighbours among all images, so that ranks find those of one process.
    "dinov2_loss": Of(
        overrides=(
            *_masked("dinov2"), *_scores("dinov2"), "config.LOSS.dinov2_loss.koleo_over_ranks=true",
        ),
        more={"also": [EQUAL]},
    ),
    "dinov3_loss": Of(
        overrides=(
            "config=quickstart/dinov3", "+config/dinov3=gram", f"{CROPS}=[16,12]",
            *TINY_VIT[1:], *_scores("dinov3"), "config.LOSS.dinov3_loss.koleo_over_ranks=true", "config.LOSS.dinov3_loss.gram_refresh=1",
        ),
        more={"also": [EQUAL]},
    ),
    "lejepa": own("lejepa", f"{CROPS}=[16,12]", dim=8, hidden=16, slices=8),
    "visreg": own(
        "visreg", f"{CROPS}=[16,12]", dim=8, hidden=16, slices=8,
        more={"without": {"ranks_equal_one_process": "each rank draws other directions"}},
    ),
    "moco_v3": own("moco_v3", SIDE, dim=8, hidden=16),
    "nnclr": own(
        "nnclr", SIDE, dim=8, hidden=16, predictor_hidden=16, rows=20, temperature=1.0, more={"also": [EQUAL]},
    ),
    "supcon": own("supcon", SIDE, dim=8, hidden=16),
    "ressl": own("ressl", SIDE, dim=8, hidden=16, rows=20),
    "vicregl": own("vicregl", SIDE, dim=8, hidden=16, local=8),
    "densecl": own("densecl", SIDE, dim=8, hidden=16, rows=20),
    # Over groups of the channels of one image: what is left is each image's own.
    "without batch norm": of(
        "rotnet", "[mlp,{dims:[32,4]}]", "config.DATA.TRAIN.TRANSFORMS.0.size=16",
        "config.MODEL.TRUNK.RESNETS.NORM=GroupNorm", "config.MODEL.TRUNK.RESNETS.GROUPNORM_GROUPS=2",
        component="cross_entropy_multiple_output_single_target", also=[SUMMED],
    ),
    "bce_logits_multiple_output_single_target": of(
        "rotnet", "[mlp,{dims:[32,4]}]", "config.DATA.TRAIN.TRANSFORMS.0.size=16",
        "config.METERS.name=''", "config.DATA.TRAIN.TRANSFORMS.4={name:OneHotEncode,num_classes:4}",
        also=[EQUAL]),
    "deepclusterv2_loss": of(
        "deepclusterv2", PROJECTOR, f"{CROPS}=[16]", SAMPLE_INDEX,
        "config.LOSS.deepclusterv2_loss.num_clusters=[3,2]",
        "config.LOSS.deepclusterv2_loss.memory_params.embedding_dim=8",
        without={**NO_TESTS, "first_loss_is_close_in_bfloat16": "rounded features fall into other clusters"},
    ),
    "nce_loss_with_memory": of(
        "npid", PROJECTOR, "config.DATA.TRAIN.TRANSFORMS.0.size=16", SAMPLE_INDEX,
        "config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=4",
        "config.LOSS.nce_loss_with_memory.memory_params.embedding_dim=8", without=NO_TESTS,
    ),
    "cross_entropy_multiple_output_single_target": of(
        "rotnet", "[mlp,{dims:[32,4]}]", "config.DATA.TRAIN.TRANSFORMS.0.size=16", also=[EQUAL]),
    "ijepa_loss": Of(overrides=(
        "config=quickstart/ijepa", *TINY_VIT, "config.LOSS.ijepa_loss.predictor_dim=128",
        # In narrow networks the gradients of such small initial weights are lost in rounding.
        "config.MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM=192",
        "config.MODEL.TRUNK.VISION_TRANSFORMERS.MLP_DIM=192",
        "config.LOSS.ijepa_loss.predictor_layers=1", "config.LOSS.ijepa_loss.predictor_heads=2",
        "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS={patch_size:2,min_keep:4}",
        "config.MODEL.TRUNK.VISION_TRANSFORMERS.PATCH_SIZE=2",
    ), more={"also": [EQUAL]}),
    "capi_loss": Of(overrides=(
        "config=quickstart/capi", *TINY_VIT, "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS={patch_size:4,predicted:0.5}",
        "config.LOSS.capi_loss.num_clusters=6", "config.LOSS.capi_loss.predictor_layers=1",
        "config.LOSS.capi_loss.predictor_heads=2",
    ), more={"also": [EQUAL]}),
    "clip_loss": of("clip", "", "config.DATA.TRAIN.TRANSFORMS.0.size=16", "config.LOSS.clip_loss.dim=8",
                    also=[EQUAL]),
    "siglip": of("clip", "", "config.DATA.TRAIN.TRANSFORMS.0.size=16", "config.LOSS.clip_loss.dim=8",
                 "config.LOSS.clip_loss.loss=siglip", component="clip_loss", also=[EQUAL]),
    "distillation_loss": Of(
        overrides=(*DISTILLATION, *needed("distillation")), more={"also": [EQUAL]}
    ),
    "scores of a teacher": Of(
        overrides=(*DISTILLATION, *with_scores()), component="distillation_loss",
        more={"also": [EQUAL]},
    ),
    "simmim_loss": Of(overrides=("config=quickstart/simmim", *TINY_VIT, *MASK_4),
                      more={"also": [EQUAL]}),
    "mae_loss": Of(overrides=(
        "config=quickstart/mae", *TINY_VIT, "config.LOSS.mae_loss.decoder_dim=8",
        "config.LOSS.mae_loss.decoder_layers=1", "config.LOSS.mae_loss.decoder_heads=2",
        "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=4",
    ), more={"also": [EQUAL]}),
    "data2vec_loss": Of(overrides=(
        "config=quickstart/data2vec", *TINY_VIT, MASK_4[0], "config.LOSS.data2vec_loss.top_layers=1",
    ), more={"also": [EQUAL]}),
}  # fmt: skip
MODELS_SMALL: dict[str, Of] = {
    "multi_input_output_model": Of(),
}  # fmt: skip
OFTEN_IN_HALF = ("simclr_info_nce_loss", "swav_loss", "moco_loss", "mae_loss")
IN_HALF = [
    f"{name}-{promise}"
    for promise in ("trains_in_bfloat16", "first_loss_is_close_in_bfloat16")
    for name in (*METHODS, *MODELS_SMALL)
    if name not in OFTEN_IN_HALF
]
# What differs between ranks: a queue, a memory, a centre, statistics of all images.
ACROSS_RANKS = ("simclr_info_nce_loss", "moco_loss", "swav_loss", "dino_loss", "msn_loss", "dinov3_loss", "capi_loss", "clip_loss",
                "deepclusterv2_loss", "nce_loss_with_memory", "multi_input_output_model")  # fmt: skip
OF_ONE_RANK = [
    f"{name}-ranks_stay_equal" for name in (*METHODS, *MODELS_SMALL) if name not in ACROSS_RANKS
]
SLOW = (
    *OF_ONE_RANK,
    "accumulates",
    "ranks_stay_equal_sharded",
    EQUAL,
    *IN_HALF,
)


@pytest.mark.parametrize(("tried", "promise"), cases("method", METHODS, SLOW))
def test_method(tried: Suite, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.parametrize(("tried", "promise"), cases("model", MODELS_SMALL, SLOW))
def test_model(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    assert forgotten(LOSSES, METHODS) == []
    assert forgotten(MODELS, MODELS_SMALL) == []
