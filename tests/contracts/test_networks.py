"""Every trunk and every head that ships, at a small size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.models.build import build_trunk
from sslengine.registry import HEADS, OPTIMIZERS, TRUNKS
from sslengine.testing.promises import Suite
from tests.contracts.cases import Of, cases, forgotten
from tests.contracts.test_methods import TINY
from tests.models.trunks import checks

# Gradients of depthwise convolutions lie in memory as their patches did; torch copies them.
pytestmark = pytest.mark.filterwarnings("ignore:Grad strides do not match")

DROPS = {"DROP_PATH_RATE": 0.3, "DROPOUT_RATE": 0.1}
VIT = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 32, "NUM_HEADS": 4, "MLP_DIM": 32}
SIDE_32 = "config.DATA.TRAIN.TRANSFORMS.1.size=32"
# Weights rounded to bfloat16, all else in float64, move the features of ResNet-SK by 59 %: deep
# networks normalize the few values of eight images again and again.
AMPLIFIES = {"first_loss_is_close_in_bfloat16": "its batch norms amplify rounding; see below"}


def trunk(
    width: int, *overrides: str, unchanged: tuple[str, ...] = (), component: str = "",
    without: dict[str, str] | None = None, **arguments: Any,
) -> Of:  # fmt: skip
    head = f"config.MODEL.HEAD.PARAMS=[[mlp,{{dims:[{width},8]}}]]"
    more = {"unchanged": unchanged, "without": without or {}}
    return Of(arguments, (head, SIDE_32, *overrides), more, component)


TRUNKS_SMALL: dict[str, Of] = {
    "resnet": trunk(32, RESNETS={"DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.0625}),
    "resnet_sk": trunk(512, without=AMPLIFIES, RESNETS_SK={"DEPTH": 50, "WIDTH_MULTIPLIER": 0.25}),
    "vision_transformer": trunk(
        32, VISION_TRANSFORMERS={**VIT, **DROPS, "PATCH_SIZE": 16}),
    "rotary": trunk(
        32, component="vision_transformer",
        VISION_TRANSFORMERS={**VIT, "PATCH_SIZE": 16, "ROPE": "centres", "ROPE_SHIFT": 0.3,
                             "ROPE_JITTER": 1.2, "ROPE_RESCALE": 2.0, "REGISTER_TOKENS": 2,
                             "NORM": "RMSNorm", "DROP_PATH_RATE": 0.3}),
    "regnet": trunk(32, REGNET={"depth": 2, "w_0": 32, "w_a": 0.0, "w_m": 2.0, "group_width": 8}),
    "efficientnet": trunk(1280, EFFICIENT_NETS={"drop_connect_rate": 0.2}),
    "xcit": trunk(32, XCIT={"IMAGE_SIZE": 32, "HIDDEN_DIM": 32, "NUM_LAYERS": 1, "NUM_HEADS": 4,
                            "NUM_CLASS_LAYERS": 1, **DROPS}),
    "convit": trunk(32, CONVIT={"N_GPSA_LAYERS": 1}, VISION_TRANSFORMERS={**VIT, **DROPS}),
    "swin_transformer": trunk(32, SWIN_TRANSFORMER={
        "IMAGE_SIZE": 32, "EMBED_DIM": 16, "DEPTHS": [2, 2], "NUM_HEADS": [2, 2], "WINDOW_SIZE": 4,
        **DROPS}),
    "convnext": trunk(32, CONVNEXT={"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 16, 32],
                                    "DROP_PATH_RATE": 0.3},
                      # A branch begins at a millionth: what a step adds to 1 is lost in rounding.
                      unchanged=("trunk.stages.*.norm.weight",)),
    "beit": trunk(32, BEIT={"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 32, "NUM_HEADS": 4,
                            "QKV_BIAS": True, "USE_REL_POS_BIAS": True, "INIT_VALUES": 0.1,
                            **DROPS}),
    "alexnet": trunk(9216, "config.DATA.TRAIN.TRANSFORMS.1.size=64"),
    "mobilenetv3_tv": trunk(960),
    "mobilenetv3_timm": trunk(960, without=AMPLIFIES),
    "timm": trunk(256, TIMM={"model": "test_byobnet", "arguments": {"drop_path_rate": 0.3}}),
    "torchvision": trunk(512, TORCHVISION={"model": "squeezenet1_1"}),
}  # fmt: skip


def head(*before: Any, overrides: tuple[str, ...] = (), **arguments: Any) -> Of:
    return Of(arguments, overrides, {"before": before})


LISTED = "config.DATA.TRAIN.COLLATE_FUNCTION=multicrop_collator"
HEADS_SMALL: dict[str, Of] = {
    "mlp": head(dims=[32, 16, 8], use_bn=True, use_relu=True, use_dropout=True),
    "eval_mlp": head(in_channels=32, dims=[32, 8]),
    "identity": head(),
    "predictor_head": head(dims=[32, 16, 8], predictor_dims=[8, 16, 8],
                           overrides=("config.LOSS.name=byol_loss",)),
    "swav_head": head(dims=[32, 16, 8], use_bn=True, num_clusters=[6],
                      overrides=("config.LOSS.name=swav_loss", LISTED)),
    "dino_head": head(in_dim=32, num_clusters=[6], use_bn=True, hidden_dim=16, bottleneck_dim=8,
                      overrides=("config.LOSS.name=dino_loss", LISTED)),
    "msn_head": head(in_dim=32, hidden_dim=16, output_dim=8),
    # Nine patches with eight features each are the scores of as many orders.
    "siamese_concat_view": head(
        ["mlp", {"dims": [32, 8]}], num_towers=9,
        overrides=("config=quickstart/jigsaw", *TINY, "config.DATA.TRAIN.TRANSFORMS.7.num_perms=72")),
    "pixel_head": Of(
        {"in_dim": 128, "stride": 6}, ("config=quickstart/simmim",), {"without": {
            "treats_images_independently": "the suite gives it images without masks"}}),
    "mobilenet_v3_head": head(in_channels=32, mid_channels=16, num_classes=8),
    "mobilenet_v3_head_timm": head(in_channels=32),
    "linear_probe": head(dims=[32, 8], norm="layer"),
    "attentive_probe": head(in_dim=32, out_dim=8),
}  # fmt: skip
SLOW = ("accumulates", "ranks_stay_equal", "ranks_stay_equal_sharded",
        "trains_in_bfloat16", "first_loss_is_close_in_bfloat16")  # fmt: skip


OFTEN = ("resnet", "vision_transformer", "convnext")
OF_OTHERS = ("resumes_bit_exactly", "treats_images_independently")
HALF = ("trains_with_finite_losses", "trains_every_parameter", "tests_change_nothing")  # one run
RARELY = [
    *(f"{name}-{each}" for name in TRUNKS_SMALL if name not in OFTEN for each in OF_OTHERS),
    *(f"{name}-{each}" for name in [*TRUNKS_SMALL][1::2] if name not in OFTEN for each in HALF),
]


@pytest.mark.parametrize(("tried", "promise"), cases("trunk", TRUNKS_SMALL, (*SLOW, *RARELY)))
def test_trunk(tried: Suite, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, of in TRUNKS_SMALL.items() if of.more["without"]])
def test_what_amplifies_rounding_is_close_in_bfloat16_by_running_statistics(name: str) -> None:
    of = TRUNKS_SMALL[name]
    network = build_trunk(checks.options({"TRUNK": {"NAME": name, **of.arguments}})).eval()
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        (whole,) = network(images, [])
        with torch.autocast("cpu", torch.bfloat16):
            (half,) = network(images, [])
    assert (half.float() - whole).norm() < 0.1 * whole.norm()


@pytest.mark.parametrize(
    ("tried", "promise"),
    cases("head", HEADS_SMALL, (*SLOW, "resumes_bit_exactly", "treats_images_independently")),
)
def test_head(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    assert forgotten(TRUNKS, TRUNKS_SMALL) == []
    assert forgotten(HEADS, HEADS_SMALL) == []


OPTIMIZERS_SMALL: dict[str, Of] = {
    "sgd": Of({"momentum": 0.9, "nesterov": True}),
    "adam": Of(),
    "adamw": Of({"betas": [0.9, 0.95]}),
    "rmsprop": Of(),
    "lars": Of({"momentum": 0.9}),
    "sgd with LARC": Of({"use_larc": True, "momentum": 0.9}, component="sgd"),
}


@pytest.mark.parametrize(("tried", "promise"), cases("optimizer", OPTIMIZERS_SMALL, SLOW))
def test_optimizer(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_no_optimizer_is_forgotten() -> None:
    assert forgotten(OPTIMIZERS, OPTIMIZERS_SMALL) == []
