"""The recipes of configs/pretrain against what was published, value by value.

Each recipe is resolved, its model built (on the meta device: no memory), its optimizer and its
transforms made; what they are is compared with a table written from the authors' code, of which the
commit stands beside it. A value that differs is named in the YAML, `# differs: <what>: <why>`; the
differences found and those named must be the same.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torchvision.transforms import ColorJitter, InterpolationMode

from sslengine import catalog  # noqa: F401
from sslengine.config.components import owns_network
from sslengine.config.compose import compose
from sslengine.config.facts import run_facts
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.engine.build import build_loss
from sslengine.methods.step import Step
from sslengine.models.build import build_model
from sslengine.models.momentum import rising_momentum
from sslengine.models.options import ModelOptions
from sslengine.optim.build import build_optimizer
from sslengine.optim.options import OptimizerOptions
from sslengine.registry import LOSSES, TRANSFORMS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RECIPES = sorted(
    path.relative_to(CONFIGS / "pretrain").with_suffix("").as_posix()
    for path in (CONFIGS / "pretrain").rglob("*.yaml")
)
# Shares of training at which learning rates and the like are compared.
POINTS = (0.0, 0.004, 0.02, 0.25, 0.5, 0.75, 0.995)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


# ---- the published values


def warm_cosine(
    peak: float, warmup: int, epochs: int, start: float = 0.0, end: float = 0.0
) -> list[float]:
    """Linear up to the peak in the first epochs, then half a cosine over the others."""

    def at(epoch: float) -> float:
        if epoch < warmup:
            return start + (peak - start) * epoch / warmup
        share = (epoch - warmup) / (epochs - warmup)
        return end + (peak - end) * (1 + math.cos(math.pi * share)) / 2

    return [at(point * epochs) for point in POINTS]


def by_epoch(curve: Callable[[int], float], epochs: int) -> list[float]:
    return [curve(int(point * epochs)) for point in POINTS]


def cosine_by_epoch(peak: float, epochs: int, end: float = 0.0) -> list[float]:
    return by_epoch(
        lambda epoch: end + (peak - end) * (1 + math.cos(math.pi * epoch / epochs)) / 2, epochs
    )


def steps(first: float, milestones: Sequence[int]) -> Callable[[int], float]:
    """A tenth at each milestone."""
    return lambda epoch: first * 0.1 ** sum(epoch >= each for each in milestones)


def constant(value: float) -> list[float]:
    return [value] * len(POINTS)


def rising_to_one(base: float) -> list[float]:
    """The teacher's momentum of BYOL and DINO."""
    return [1 - (1 - base) * (math.cos(math.pi * point) + 1) / 2 for point in POINTS]


def _with_a_step(epoch: float) -> float:
    """SimMIM's: ten epochs up to 0.0004, a tenth of it after 700."""
    return 2e-6 + (4e-4 - 2e-6) * epoch / 10 if epoch < 10 else 4e-4 if epoch < 700 else 4e-5


def _of_timm(epoch: float) -> float:
    """Proteus's: five epochs up to 0.0005, then timm's cosine, which began with the run."""
    if epoch < 5:
        return 1e-6 + (5e-4 - 1e-6) * epoch / 5
    return 1e-5 + (5e-4 - 1e-5) * (1 + math.cos(math.pi * epoch / 300)) / 2


def _of_a_longer_run(epoch: float) -> float:
    """MSN's: 15 epochs up to 0.001, then a cosine that would end after 1000."""
    if epoch < 15:
        return 2e-4 + 8e-4 * epoch / 15
    return 1e-6 + (1e-3 - 1e-6) * (1 + math.cos(math.pi * (epoch - 15) / 985)) / 2


def _of_supcon(epoch: float) -> float:
    """SupContrast's: ten epochs up to a cosine by epochs that began with the run."""

    def cosine(epoch: float) -> float:
        return 5e-4 + (0.5 - 5e-4) * (1 + math.cos(math.pi * epoch / 1000)) / 2

    warm = 0.01 + (cosine(10) - 0.01) * epoch / 10
    return warm if epoch < 10 else cosine(int(epoch) + 1)


def _cut_short(point: float) -> float:
    """CAPI's: a tenth of the steps up to 1, then 0.8 of half a cosine."""
    if point < 0.1:
        return point / 0.1
    return (1 + math.cos(math.pi * 0.8 * (point - 0.1) / 0.9)) / 2


def everything(name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    return True


def weights(name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    """No decay on biases and on what has one dimension: timm's add_weight_decay, and DINO's."""
    return parameter.ndim > 1 and not name.endswith(".bias")


def no_norms(name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    """VISSL's regularize_bn: False, regularize_bias: True."""
    return not isinstance(owner, (nn.BatchNorm1d, nn.BatchNorm2d))


def no_norms_or_scales(name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    """DINOv2's get_params_groups_with_decay."""
    return not (name.endswith("bias") or "norm" in name or "gamma" in name)


def capi_decays(name: str, parameter: nn.Parameter, owner: nn.Module) -> float:
    """get_params_groups of CAPI's train_capi.py."""
    return 0.1 if "norm" in name and "weight" in name else float(not name.endswith(".bias"))


def layer_decay(blocks: int, decay: float = 0.9) -> Callable[[str], float]:
    """DINOv2's get_vit_lr_decay_rate, and its factor of the patch embedding."""

    def rate(name: str) -> float:
        first, second, *_ = [*name.removeprefix("trunk.").split("."), ""]
        embeds = first in ("pos_embed", "patch_embed", "mask_token", "cls_token", "reg_token")
        layer = int(second) + 1 if first == "blocks" else 0 if embeds else blocks + 1
        return decay ** (blocks + 1 - layer) * (0.2 if first == "patch_embed" else 1.0)

    return rate


def crop(
    size: int = 224, least: float = 0.08, how: str = "bicubic", most: float = 1.0
) -> tuple[Any, ...]:
    return "crop", size, (least, most), how


FLIP = ("flip", 0.5)
GREY = ("grey", 0.2)
BLUR = ("blur", 0.5, 0.1, 2.0)


def jitter(b: float, c: float, s: float, h: float, p: float = 0.8) -> tuple[Any, ...]:
    return "jitter", p, b, c, s, h


def two_views_of_byol(first: tuple[Any, ...]) -> list[list[tuple[Any, ...]]]:
    """Barlow Twins and VICReg took them over; DINO for its large crops."""
    same = [first, FLIP, jitter(0.4, 0.4, 0.2, 0.1), GREY]
    return [
        [*same, ("blur", 1.0, 0.1, 2.0)],
        [*same, ("blur", 0.1, 0.1, 2.0), ("solarize", 0.2, 128)],
    ]


def dino_crops(
    large: float, small: tuple[float, float], number: int = 8
) -> list[list[tuple[Any, ...]]]:
    local = [
        crop(96, small[0], most=small[1]), FLIP, jitter(0.4, 0.4, 0.2, 0.1), GREY, BLUR
    ]  # fmt: skip
    return [*two_views_of_byol(crop(224, large)), *[local] * number]


def swav_crops() -> list[list[tuple[Any, ...]]]:
    after = [FLIP, jitter(0.8, 0.8, 0.8, 0.2), GREY, BLUR]
    large = [crop(224, 0.14, "bilinear"), *after]
    return [*[large] * 2, *[[crop(96, 0.05, "bilinear", 0.14), *after]] * 6]


IBOT_MASKS = ("MaskedImageModeling", {
    "pred_ratio_mean": [0.0, 0.3], "pred_ratio_var": [0.0, 0.2], "patch_size": 16,
    "log_aspect_ratio": [0.3, 1 / 0.3],
})  # fmt: skip
MOCO_V2 = [crop(224, 0.2, "bilinear"), jitter(0.4, 0.4, 0.4, 0.1), GREY, BLUR, FLIP]
WITH_BOX = ("RandomResizedCropWithBox",
            {"size": 224, "scale": [0.08, 1.0], "p": 0.5, "interpolation": 3})  # fmt: skip
LARS = {"name": "lars", "momentum": 0.9, "eta": 0.001, "vectors are plain SGD": True}
SGD = {"name": "sgd", "momentum": 0.9, "nesterov": False}
LARC = {**SGD, "trust coefficient": 0.001, "clip": False}
# Those whose source is VISSL: facebookresearch/vissl 09270ed2, configs/config/pretrain.
NPID_LOSS = {"loss_type": "nce", "temperature": 0.07, "memory_params.momentum": 0.5,
             "memory_params.embedding_dim": 128}  # fmt: skip

# Images that a residual branch skips. Ours draws for each image, as timm does.
ONE_NUMBER = "the same number of each batch"
OFFICIAL: dict[str, dict[str, Any]] = {
    # facebookresearch/simsiam a7bc177: main_simsiam.py, simsiam/builder.py, README (batch 256)
    "simsiam/simsiam_1node_resnet50": {
        "epochs": 100, "batch": 256, "optimizer": SGD,
        "learning rate": cosine_by_epoch(0.05, 100), "of the predictor": constant(0.05),
        "weight decay": constant(1e-4), "decays": everything,
        "views": [MOCO_V2] * 2, "normalize": IMAGENET,
        "batch norm": "each view, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 2048", "norm", "ReLU", "2048 to 2048", "norm", "ReLU",
                 "2048 to 2048", "plain norm", "2048 to 512", "norm", "ReLU", "512 to 2048 + bias"],
        "precision": "float32",
    },
    # google-deepmind/deepmind-research 4822a45: byol/configs/byol.py, byol_experiment.py,
    # utils/{networks,augmentations,schedules,optimizers}.py; a block's last norm: dm-haiku's ResNet
    "byol/byol_8node_resnet50": {
        "epochs": 1000, "batch": 4096, "optimizer": LARS,
        "learning rate": warm_cosine(3.2, 10, 1000),
        "weight decay": constant(1.5e-6), "decays": weights,
        "views": two_views_of_byol(crop()), "normalize": IMAGENET,
        "batch norm": "each view, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 4096 + bias", "norm", "ReLU", "4096 to 256",
                 "256 to 4096 + bias", "norm", "ReLU", "4096 to 256"],
        "teacher's momentum": rising_to_one(0.996), "precision": "float32",
    },
    # facebookresearch/barlowtwins 8e8d284: main.py. Biases and norms: 0.0048 for 256 images, of a
    # gradient that is 1/32 of the true one, for no gradient passes the sum over their 32 ranks
    "barlow_twins/barlow_twins_32gpu_resnet50": {
        "epochs": 1000, "batch": 2048, "optimizer": LARS,
        "learning rate": warm_cosine(1.6, 10, 1000, end=0.0016),
        "of biases and norms": warm_cosine(0.0048 * 8 / 32, 10, 1000, end=0.0048 * 8 / 32 * 0.001),
        "weight decay": constant(1e-6), "decays": weights,
        "views": two_views_of_byol(crop()), "normalize": IMAGENET,
        "batch norm": "each view, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 8192", "norm", "ReLU", "8192 to 8192", "norm", "ReLU", "8192 to 8192"],
        "loss": {"lambda_": 0.0051}, "precision": "float16",
    },
    # facebookresearch/vicreg 4e12602: main_vicreg.py, augmentations.py, README (1000 epochs)
    "vicreg/vicreg_32gpu_resnet50": {
        "epochs": 1000, "batch": 2048, "optimizer": LARS,
        "learning rate": warm_cosine(1.6, 10, 1000, end=0.0016),
        "weight decay": constant(1e-6), "decays": weights,
        "views": two_views_of_byol(crop()), "normalize": IMAGENET,
        "batch norm": "each view, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 8192 + bias", "norm", "ReLU", "8192 to 8192 + bias", "norm", "ReLU",
                 "8192 to 8192"],
        "loss": {"sim_coeff": 25.0, "std_coeff": 25.0, "cov_coeff": 1.0, "gamma": 1.0,
                 "eps": 1e-4},
        "precision": "float16",
    },
    # google-research/simclr 383d414: run.py, model.py, model_util.py, data_util.py, resnet.py,
    # lars_optimizer.py; two layers in the head, rate and length as in the paper (section 2 and B.9)
    "simclr/simclr_64gpu_resnet50": {
        "epochs": 1000, "batch": 4096, "optimizer": {**LARS, "rate inside the momentum": True},
        "learning rate": warm_cosine(4.8, 10, 1000),
        "weight decay": constant(1e-6), "decays": weights,
        "views": [[crop(), FLIP, jitter(0.8, 0.8, 0.8, 0.2), GREY, BLUR]] * 2, "normalize": None,
        "batch norm": "views together, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 2048", "norm", "ReLU", "2048 to 128", "norm without shift"],
        "loss": {"temperature": 0.1}, "precision": "float32",
    },
    # facebookresearch/moco 010242b: main_moco.py (--mlp --moco-t 0.2 --aug-plus --cos), README
    "moco/moco_1node_resnet50": {
        "epochs": 200, "batch": 256, "optimizer": SGD,
        "learning rate": cosine_by_epoch(0.03, 200),
        "weight decay": constant(1e-4), "decays": everything,
        "views": [MOCO_V2] * 2, "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 2048 + bias", "ReLU", "2048 to 128 + bias"],
        "loss": {"temperature": 0.2, "queue_size": 65536, "momentum": 0.999,
                 "embedding_dim": 128},
        "precision": "float32",
    },
    # facebookresearch/swav 06b1b7c: scripts/swav_800ep_pretrain.sh, main_swav.py,
    # src/multicropdataset.py, src/resnet50.py
    "swav/swav_64gpu_resnet50": {
        "epochs": 800, "batch": 4096, "optimizer": LARC,
        "learning rate": warm_cosine(4.8, 10, 800, start=0.3, end=0.0048),
        "weight decay": constant(1e-6), "decays": everything,
        "views": swav_crops(),
        "normalize": {"mean": (0.485, 0.456, 0.406), "std": (0.228, 0.224, 0.225)},
        "batch norm": "views together, 8 ranks", "last norm of a block": "one",
        "head": ["2048 to 2048 + bias", "norm", "ReLU", "2048 to 128 + bias", "128 to 3000"],
        "loss": {"temperature": 0.1, "num_iters": 3, "epsilon": 0.05, "crops_for_assign": [0, 1],
                 "queue.queue_length": 0, "normalize_last_layer": True},
        "frozen": ({"heads.0.prototypes0.weight": 313}, "gradient"), "precision": "float16",
    },
    # The same: scripts/deepclusterv2_800ep_pretrain.sh, main_deepclusterv2.py
    "deepcluster_v2/deepcluster_v2_64gpu_resnet50": {
        "epochs": 800, "batch": 4096, "optimizer": LARC,
        "learning rate": warm_cosine(4.8, 10, 800, start=0.3, end=0.0048),
        "weight decay": constant(1e-6), "decays": everything,
        "views": swav_crops(),
        "normalize": {"mean": (0.485, 0.456, 0.406), "std": (0.228, 0.224, 0.225)},
        "batch norm": "views together, 8 ranks", "last norm of a block": "one",
        "head": ["2048 to 2048 + bias", "norm", "ReLU", "2048 to 128 + bias"],
        "loss": {"temperature": 0.1, "num_clusters": [3000, 3000, 3000], "kmeans_iters": 10,
                 "memory_params.crops_for_mb": [0, 1], "memory_params.embedding_dim": 128},
        "precision": "float32",
    },
    # facebookresearch/dino 7c446df: README ("Full command" of the boosted run), main_dino.py, utils.py
    "dino/dino_16gpu_vits16": {
        "epochs": 300, "batch": 1024, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(0.002, 10, 300, end=1e-6),
        "weight decay": [0.4 - 0.36 * (1 + math.cos(math.pi * p)) / 2 for p in POINTS],
        "decays": weights,
        "views": dino_crops(0.4, (0.05, 0.4)), "normalize": IMAGENET,
        "clip": {"norm": 3.0, "each": True},
        "head": ["384 to 2048 + bias", "GELU", "2048 to 2048 + bias", "GELU", "2048 to 256 + bias",
                 "256 to 65536 unit length, learned lengths"],
        "loss": {"student_temp": 0.1, "crops_for_teacher": [0, 1], "ema_center": 0.9},
        "teacher's momentum": rising_to_one(0.996),
        "teacher's temperature": by_epoch(lambda e: min(0.07, 0.04 + 0.03 * e / 29), 300),
        "frozen": ({"heads.0.prototypes0.weight_v": 1251, "heads.0.prototypes0.weight_g": 1251},
                   "gradient"),
        "drop path": 0.1, "precision": "float16",
        "positions of small crops": "scaled, 0.1 added to the new side",
    },
    # bytedance/ibot da316d8: README ("ViT-S/16 network on two nodes"), main_ibot.py, loader.py
    "ibot/ibot_16gpu_vits16": {
        "epochs": 800, "batch": 1024, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(0.002, 10, 800, end=1e-6),
        "weight decay": [0.4 - 0.36 * (1 + math.cos(math.pi * p)) / 2 for p in POINTS],
        "decays": weights,
        "views": [[*view, IBOT_MASKS] for view in dino_crops(0.25, (0.05, 0.25), 10)],
        "normalize": IMAGENET, "clip": {"norm": 3.0, "each": True},
        "head": ["384 to 2048 + bias", "GELU", "2048 to 2048 + bias", "GELU", "2048 to 256 + bias",
                 "256 to 8192 unit length, learned lengths"],
        "loss": {"student_temp": 0.1, "ema_center": 0.9, "class_weight": 1.0, "patch_weight": 1.0},
        "teacher's momentum": rising_to_one(0.996),
        "teacher's temperature": by_epoch(lambda e: min(0.07, 0.04 + 0.03 * e / 29), 800),
        "frozen": ({"loss.student.head.prototypes0.weight_v": 1251, "loss.student.head.prototypes0.weight_g": 1251},
                   "gradient"),
        "drop path": 0.1, "precision": "float16",
        "positions of small crops": "scaled, 0.1 added to the new side",
    },
    # facebookresearch/dinov2 b8931f7: configs/{ssl_default_config,train/vitl16_short}.yaml, train/,
    # utils/param_groups.py, data/{augmentations,collate,masking}.py. 100 epochs of 1250 steps.
    "dinov2/dinov2_32gpu_vitl16": {
        "epochs": 200, "batch": 2048, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(0.004 * math.sqrt(2), 20, 200, end=1e-6),
        "rates": layer_decay(24),
        "weight decay": [0.4 - 0.36 * (1 + math.cos(math.pi * p)) / 2 for p in POINTS],
        "decays": no_norms_or_scales,
        "views": dino_crops(0.32, (0.05, 0.32)), "normalize": IMAGENET,
        "masks": {"patch_size": 16},
        "clip": {"norm": 3.0, "each": "module"},
        "head": ["1024 to 2048 + bias", "GELU", "2048 to 2048 + bias", "GELU", "2048 to 256 + bias",
                 "256 to 65536 unit length, learned lengths"],
        "model": {"HIDDEN_DIM": 1024, "NUM_LAYERS": 24, "LAYER_SCALE": 1e-5, "REGISTER_TOKENS": 0,
                  "DROP_PATH_UNIFORM": True, "QKV_BIAS": True, "MLP_DIM": 4096, "SWIGLU": False},
        "loss": {"student_temp": 0.1, "ema_center": 0.9, "class_weight": 1.0, "patch_weight": 1.0,
                 "koleo_weight": 0.1, "targets": "center", "koleo_over_ranks": False},
        "teacher's momentum": rising_to_one(0.992),
        "teacher's temperature": [min(0.07, 0.04 + 0.03 * p * 125_000 / 37_499) for p in POINTS],
        "frozen": ({"loss.student.head.prototypes0.weight_v": 1250, "loss.student.head.prototypes0.weight_g": 1250}, "rate"),
        "drop path": 0.3, "precision": "float16",
        "positions of small crops": "scaled, 0.1 added to the new side",
        "class token": "normal, 1e-6", "stochastic depth": ONE_NUMBER,
    },
    # facebookresearch/dinov3 6876159: configs/{ssl_default_config,train/vitl_im1k_lin834}.yaml, train/,
    # models/vision_transformer.py. 100 epochs of 1250 steps. The rate of sqrt_wrt_1024: configs/config.py,
    # line 52, for a YAML without `schedules` (the 7B's: train/train.py, line 170, the same rule).
    "dinov3/dinov3_32gpu_vitl16": {
        "epochs": 200, "batch": 2048, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(0.001 * 4 * math.sqrt(2048 / 1024), 20, 200, end=1e-6),
        "rates": layer_decay(24),
        "weight decay": [0.4 - 0.36 * (1 + math.cos(math.pi * p)) / 2 for p in POINTS],
        "decays": no_norms_or_scales,
        "views": dino_crops(0.32, (0.05, 0.32)), "normalize": IMAGENET,
        "masks": {"patch_size": 16},
        "clip": {"norm": 3.0, "each": "module"},
        "head": ["1024 to 2048 + bias", "GELU", "2048 to 2048 + bias", "GELU", "2048 to 256 + bias",
                 "256 to 65536"] * 2,
        "loss": {"student_temp": 0.1, "class_weight": 1.0, "patch_weight": 1.0, "gram_weight": 0.0,
                 "koleo_weight": 0.1, "targets": "sinkhorn", "koleo_over_ranks": False},
        "model": {"registers": 0, "blocks": 24, "positions": "RotaryEmbeddingDinoV3",
                  "layer scale": 1e-5},
        "bias of keys": True, "drop path of blocks": "equal", "stochastic depth": ONE_NUMBER,
        "teacher's momentum": rising_to_one(0.992),
        "teacher's temperature": [min(0.07, 0.04 + 0.03 * p * 125_000 / 37_499) for p in POINTS],
        "frozen": ({f"loss.student.{n}.prototypes0.weight": 1250 for n in ("head", "patch_head")}, "rate"),
        "drop path": 0.3, "precision": "bfloat16",
    },
    # The same: README, "ResNet-50 and other convnets trainings"
    "dino/dino_8gpu_resnet50": {
        "epochs": 100, "batch": 512, "optimizer": SGD,
        "learning rate": warm_cosine(0.06, 10, 100, end=1e-6),
        "weight decay": constant(1e-4), "decays": weights,
        "views": dino_crops(0.14, (0.05, 0.14)), "normalize": IMAGENET,
        "clip": {"norm": 3.0, "each": True},
        "batch norm": "views together, all ranks", "last norm of a block": "one",
        "head": ["2048 to 2048 + bias", "GELU", "2048 to 2048 + bias", "GELU",
                 "2048 to 256 + bias", "256 to 65536 unit length"],
        "loss": {"student_temp": 0.1, "crops_for_teacher": [0, 1], "ema_center": 0.9},
        "teacher's momentum": rising_to_one(0.996), "teacher's temperature": constant(0.04),
        "frozen": ({"heads.0.prototypes0.weight_v": 2502}, "gradient"), "precision": "float16",
    },
    # facebookresearch/mae efb2a80: PRETRAIN.md, main_pretrain.py, models_mae.py, util/lr_sched.py;
    # weight decay: timm 0.3.2, optim_factory.add_weight_decay
    "mae/mae_64gpu_vitl16": {
        "epochs": 800, "batch": 4096, "optimizer": {"name": "adamw", "betas": (0.9, 0.95)},
        "learning rate": warm_cosine(0.0024, 40, 800),
        "weight decay": constant(0.05), "decays": weights,
        "views": [[crop(224, 0.2), FLIP]], "normalize": IMAGENET,
        "model": {"HIDDEN_DIM": 1024, "NUM_LAYERS": 24, "NUM_HEADS": 16, "MLP_DIM": 4096,
                  "QKV_BIAS": True, "PATCH_SIZE": 16},
        "head": [], "loss": {"mask_ratio": 0.75, "normalize_pixels": True, "decoder_dim": 512,
                             "decoder_layers": 8, "decoder_heads": 16},
        "drop path": 0.0, "precision": "float16",
    },
    # facebookresearch/ijepa 52c1ae9: configs/in1k_vith14_ep300.yaml, src/train.py, src/helper.py,
    # src/masks/multiblock.py
    "ijepa/ijepa_16gpu_vith14": {
        "epochs": 300, "batch": 2048, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(0.001, 40, 300, start=0.0002, end=1e-6),
        "weight decay": [0.4 - 0.36 * (1 + math.cos(math.pi * p)) / 2 for p in POINTS],
        "decays": weights,
        "views": [[crop(224, 0.3, "bilinear")]], "normalize": IMAGENET,
        "masks": {"patch_size": 14, "targets": 4, "target_scale": [0.15, 0.2],
                  "target_aspect": [0.75, 1.5], "context_scale": [0.85, 1.0], "min_keep": 10,
                  "places": "code"},
        "model": {"HIDDEN_DIM": 1280, "NUM_LAYERS": 32, "NUM_HEADS": 16, "MLP_DIM": 5120,
                  "QKV_BIAS": True, "PATCH_SIZE": 14, "USE_CLASS_TOKEN": False,
                  "SINE_POSITIONS": True, "INIT": "rescaled"},
        "head": [], "loss": {"predictor_dim": 384, "predictor_layers": 12, "predictor_heads": 16,
                             "predictor_rescaled": True},
        "teacher's momentum": [0.996 + 0.004 * p for p in POINTS],
        "drop path": 0.0, "precision": "bfloat16",
    },
    # facebookresearch/capi 98b4fa1: default_pretrain_config.yaml, train_capi.py, model.py, data.py, utils.py
    "capi/capi_32gpu_vitl14": {
        "epochs": 6410, "batch": 16384, "optimizer": {"name": "adamw", "betas": (0.9, 0.95)},
        "learning rate": [1e-3 * _cut_short(p) for p in POINTS], "weight decay": constant(0.1),
        "decays": capi_decays, "rates": lambda name: 0.2 if "patch_embed" in name else 1.0,
        "views": [[crop(224, 0.6), FLIP]], "normalize": IMAGENET,
        "masks": {"patch_size": 14, "hidden": 0.65, "predicted": 0.05, "aspect_ratios": [0.5, 2.0],
                  "masks": "outside", "roll": True},
        "model": {"HIDDEN_DIM": 1024, "NUM_LAYERS": 24, "NUM_HEADS": 16, "MLP_DIM": 4096,
                  "QKV_BIAS": False, "PATCH_SIZE": 14, "USE_CLASS_TOKEN": False,
                  "REGISTER_TOKENS": 16, "DROP_PATH_UNIFORM": True, "ROPE": "corners_mixed",
                  "NORM": "RMSNorm", "PROJ_BIAS": False, "INIT": "xavier"},
        "head": [], "loss": {
            "num_clusters": 16384, "student_temp": 0.12, "target_temp": 0.06, "cluster_temp": 0.12,
            "sinkhorn_iterations": 3, "positionwise": True, "clusters_lr": 0.5,
            "clusters_weight_decay": 0.1, "predictor_dim": 0, "predictor_layers": 12,
            "predictor_heads": 16, "predictor_drop_path": 0.2, "rotation": "code"},
        "teacher's momentum": [1 - 1e-3 * _cut_short(p) for p in POINTS],
        "drop path": 0.2, "precision": "bfloat16", "stochastic depth": ONE_NUMBER,
    },
    # facebookresearch/msn 4388dc1: configs/pretrain/msn_vits16.yaml, src/{msn_train,data_manager,utils}.py
    "msn/msn_16gpu_vits16": {
        "epochs": 800, "batch": 1024, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": [_of_a_longer_run(p * 800) for p in POINTS],
        "weight decay": [0.4 - 0.36 * (1 + math.cos(math.pi * p / 1.25)) / 2 for p in POINTS],
        "decays": weights,
        "views": [[crop(size, least, "bilinear", most), FLIP, jitter(0.4, 0.4, 0.4, 0.1), GREY, BLUR]
                  for size, least, most in [(224, 0.3, 1.0)] * 2 + [(96, 0.05, 0.3)] * 10],
        "normalize": IMAGENET, "masks": {"patch_size": 16, "dropped": 0.15, "same": True},
        "clip": {"norm": 3.0, "each": "encoder"},
        "head": ["384 to 2048 + bias", "norm", "GELU", "2048 to 2048 + bias", "norm", "GELU",
                 "2048 to 256 + bias"],
        "loss": {"num_prototypes": 1024, "temperature": 0.1, "sharpen": 0.25, "me_max_weight": 1.0,
                 "sinkhorn_iterations": 3, "entropy_weight": 0.0},
        "teacher's momentum": [0.996 + 0.004 * p / 1.25 for p in POINTS],
        "drop path": 0.0, "precision": "float32",
        "positions of small crops": "scaled", "first map of patches": "kaiming normal",
    },
    # microsoft/SimMIM d3e29bc: configs/vit_base__800ep, main_simmim.py, data/data_simmim.py, README
    "simmim/simmim_16gpu_vitb16": {
        "epochs": 800, "batch": 2048, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": [_with_a_step(p * 800) for p in POINTS],
        "weight decay": constant(0.05),
        "decays": lambda name, each, owner: weights(name, each, owner) and "cls_token" not in name,
        "views": [[crop(224, 0.67, "bilinear"), FLIP,
                   ("RandomPatchMask", {"patch_size": 16, "cell_size": 32, "ratio": 0.6})]],
        "normalize": IMAGENET, "clip": {"norm": 5.0, "each": False},
        "head": ["768 to 768 + bias"],
        "model": {"HIDDEN_DIM": 768, "NUM_LAYERS": 12, "NUM_HEADS": 12, "MLP_RATIO": 4.0,
                  "QKV_BIAS": True, "PATCH_SIZE": 16, "USE_ABS_POS_EMB": False,
                  "USE_SHARED_REL_POS_BIAS": True, "USE_REL_POS_BIAS": False,
                  "NORM_BEFORE_POOLING": True, "INIT_VALUES": 0.1},
        "drop path": 0.1, "precision": "float16",
    },
    # facebookresearch/fairseq c8bee66: examples/data2vec, config/vision/pretraining/
    # base_imagenet_d2v1.yaml, models/data2vec_vision.py, tasks/image_pretraining.py. max_update 375300,
    # warmup_updates 12510, of 16 x 128 images: 625 updates are an epoch.
    "data2vec/data2vec_16gpu_vitb16": {
        "epochs": 600, "batch": 2048, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(0.0005, 20, 600),
        "weight decay": constant(0.05), "decays": everything,
        "views": [[("jitter", 1.0, 0.4, 0.4, 0.4, 0.0), FLIP, crop(224, 0.08),
                   ("MaskedImageModeling", {
                       "pred_ratio_mean": [75 / 196], "pred_ratio_var": [0.0], "patch_size": 16,
                       "log_aspect_ratio": [0.3, 1 / 0.3]})]],
        "normalize": IMAGENET, "clip": {"norm": 3.0, "each": False}, "head": [],
        "model": {"HIDDEN_DIM": 768, "NUM_LAYERS": 12, "NUM_HEADS": 12, "MLP_RATIO": 4.0,
                  "QKV_BIAS": True, "PATCH_SIZE": 16, "USE_ABS_POS_EMB": False,
                  "USE_SHARED_REL_POS_BIAS": True, "USE_REL_POS_BIAS": False,
                  "NORM_BEFORE_POOLING": True, "INIT_VALUES": 0.0001,
                  "ATTENTION_DROPOUT_RATE": 0.05},
        "loss": {"top_layers": 6, "beta": 2.0, "momentum": 0.999, "momentum_end": 0.9998},
        "drop path": 0.25, "precision": "float16", "first mask token": "normal, mean 0.02 and deviation 1",
    },
    # BeSpontaneous/Proteus-pytorch 8b1b274: pretrain/{run_pretrain.sh,main.py,models_proteus_dinov2.py,
    # datasets.py}, "access DINOv2"; timm 0.9.16, data/transforms_factory.py and random_erasing.py
    "distillation/distillation_8gpu_vitb14": {
        "epochs": 300, "batch": 512, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": by_epoch(lambda epoch: _of_timm(max(0, epoch - 1)), 300),
        "weight decay": constant(0.05), "decays": weights,
        "views": [[crop(), FLIP,
                   ("RandAugment", {"magnitude": 9, "magnitude_std": 0.5, "num_layers": 2,
                                    "increasing_severity": True}),
                   ("RandomErasing", {"p": 0.25, "scale": [0.02, 1 / 3], "ratio": [0.3, 1 / 0.3],
                                      "value": "random", "inplace": False})]],
        "normalize": IMAGENET, "head": [],
        "model": {"HIDDEN_DIM": 768, "NUM_LAYERS": 12, "NUM_HEADS": 12, "MLP_DIM": 3072,
                  "QKV_BIAS": True, "PATCH_SIZE": 14, "LAYER_SCALE": 1.0, "REGISTER_TOKENS": 0},
        "loss": {"form": "mse", "feature": "", "teacher.timm": "vit_large_patch14_dinov2.lvd142m"},
        "objectives": ["class token", "all tokens", "hidden patches"], "repeats": 3,
        "drop path": 0.0, "precision": "float16",
    },
    # facebookresearch/moco-v3 c349e6e: main_moco.py (--moco-m-cos --crop-min=.2), CONFIG.md, moco/*.py
    "moco_v3/moco_v3_16gpu_resnet50": {
        "epochs": 100, "batch": 4096, "optimizer": LARS,
        "learning rate": warm_cosine(9.6, 10, 100),
        "weight decay": constant(1e-6), "decays": weights,
        "views": [[crop(224, 0.2, "bilinear"), *view[2:], FLIP] for view in two_views_of_byol(crop())],
        "normalize": IMAGENET,
        "batch norm": "each view, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 4096", "norm", "ReLU", "4096 to 256", "plain norm",
                 "256 to 4096", "norm", "ReLU", "4096 to 256"],
        "loss": {"temperature": 1.0}, "teacher's momentum": rising_to_one(0.99),
        "precision": "float16",
    },
    # facebookresearch/VICRegL 803ae4c: README (4 nodes), main_vicregl.py, transforms.py, optimizers.py
    "vicregl/vicregl_32gpu_resnet50": {
        "epochs": 300, "batch": 2048, "optimizer": LARS,
        "learning rate": warm_cosine(1.6, 10, 300, end=0.0016),
        "weight decay": constant(1e-6), "decays": weights,
        "views": [[WITH_BOX, *view[2:]] for view in two_views_of_byol(crop())],
        "normalize": {"mean": (0.485, 0.456, 0.406), "std": (0.228, 0.224, 0.225)},
        "batch norm": "each view, all ranks", "last norm of a block": "zero",
        "head": ["2048 to 8192 + bias", "norm", "ReLU", "8192 to 8192 + bias", "norm", "ReLU",
                 "8192 to 8192", "2048 to 512 + bias", "norm", "ReLU", "512 to 512 + bias", "norm",
                 "ReLU", "512 to 512"],
        "loss": {"alpha": 0.75, "matches": [20, 4]}, "precision": "float16",
        "positions of flipped views": "left as they were",
    },
    # WXinlong/DenseCL b64bbb6: configs/selfsup/densecl/densecl_imagenet_200ep.py, openselfsup/models
    "densecl/densecl_8gpu_resnet50": {
        "epochs": 200, "batch": 256, "optimizer": SGD,
        "learning rate": cosine_by_epoch(0.03, 200),
        "weight decay": constant(1e-4), "decays": everything,
        "views": [MOCO_V2] * 2, "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 2048 + bias", "ReLU", "2048 to 128 + bias"] * 2,
        "loss": {"temperature": 0.2, "rows": 65536, "momentum": 0.999, "dense": 0.5,
                 "match": "feature"},
        "precision": "float32",
    },
    # KyleZheng1997/ReSSL 4d67daa: ressl.py, script/train.sh, network/*.py, data/augmentation.py
    "ressl/ressl_8gpu_resnet50": {
        "epochs": 200, "batch": 256, "optimizer": SGD,
        "learning rate": warm_cosine(0.05, 5, 200),
        "weight decay": constant(1e-4),
        "decays": lambda name, each, owner: "bn" not in name and "bias" not in name,
        "views": [[crop(224, 0.2, "bilinear"), FLIP], MOCO_V2], "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 4096 + bias", "ReLU", "4096 to 512 + bias"],
        "loss": {"student_temp": 0.1, "teacher_temp": 0.04, "rows": 131072, "momentum": 0.999},
        "precision": "float32",
    },
    # HobbitLong/SupContrast 66a8fe5: README, main_supcon.py, util.py, networks/resnet_big.py, losses.py.
    # Rates and decay are those of a loss that is not multiplied by 0.1 / 0.07.
    "supcon/supcon_1gpu_resnet50": {
        "epochs": 1000, "batch": 1024, "optimizer": SGD,
        "learning rate": [_of_supcon(1000 * p) / 0.7 for p in POINTS],
        "weight decay": constant(7e-5), "decays": everything,
        "views": [[crop(32, 0.2, "bilinear"), FLIP, jitter(0.4, 0.4, 0.4, 0.1), GREY]] * 2,
        "normalize": {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 2048 + bias", "ReLU", "2048 to 128 + bias"],
        "loss": {"temperature": 0.1}, "precision": "float32",
    },
    # vturrisi/solo-learn 9187ea3: scripts/pretrain/imagenet-100/nnclr.yaml, methods/nnclr.py, utils/lars.py
    "nnclr/nnclr_2gpu_resnet18": {
        "epochs": 400, "batch": 256,
        "optimizer": {**SGD, "trust coefficient": 0.02, "clip": True, "vectors are plain SGD": True},
        "learning rate": warm_cosine(0.4, 10, 400, start=3e-5),
        "weight decay": constant(1e-5), "decays": weights,
        "views": [[view[0], *view[2:], FLIP] for view in two_views_of_byol(crop())],
        "normalize": IMAGENET,
        "batch norm": "each view, all ranks", "last norm of a block": "one",
        "head": ["512 to 2048 + bias", "norm", "ReLU", "2048 to 2048 + bias", "norm", "ReLU",
                 "2048 to 256 + bias", "norm", "256 to 4096 + bias", "norm", "ReLU", "4096 to 256 + bias"],
        "loss": {"temperature": 0.2, "rows": 65536}, "precision": "float16",
    },
    # rbalestr-lab/lejepa eddffdd: MINIMAL.md
    "lejepa/lejepa_1gpu_vits8": {
        "epochs": 800, "batch": 256, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(2e-3, 1, 800, start=2e-5, end=1e-3),
        "weight decay": constant(0.05), "decays": everything,
        "views": [[crop(128, 0.08, "bilinear"), jitter(0.8, 0.8, 0.8, 0.2), GREY,
                   (*BLUR, "7 pixels"), ("solarize", 0.1, 128), FLIP]] * 4,
        "normalize": IMAGENET,
        "head": ["384 to 512 + bias", "512 to 2048 + bias", "norm", "ReLU", "2048 to 2048 + bias",
                 "norm", "ReLU", "2048 to 16 + bias"],
        "model": {"IMAGE_SIZE": 128, "PATCH_SIZE": 8, "HIDDEN_DIM": 384, "NUM_LAYERS": 12,
                  "NUM_HEADS": 6, "MLP_DIM": 1536, "QKV_BIAS": True},
        "loss": {"weight": 0.02, "slices": 256}, "drop path": 0.1, "precision": "bfloat16",
    },
    # HaiyuWu/visreg 074fb51: README, configs/default.yaml, train.py, visreg/**/*.py
    "visreg/visreg_8gpu_vitb16": {
        "epochs": 100, "batch": 128, "optimizer": {"name": "adamw", "betas": (0.9, 0.999)},
        "learning rate": warm_cosine(9e-4, 5, 100, start=9e-7, end=9e-7),
        "weight decay": constant(0.05), "decays": weights,
        "views": [[crop(side, least, most=most), FLIP, jitter(0.4, 0.4, 0.2, 0.1), GREY,
                   (*BLUR, "9 pixels"), ("solarize", 0.1, 128)]
                  for side, least, most in [(224, 0.3, 1.0)] * 4 + [(96, 0.05, 0.3)] * 6],
        "normalize": IMAGENET, "clip": {"norm": 1.0, "each": False},
        "head": ["768 to 2048 + bias", "norm", "GELU", "2048 to 2048 + bias", "norm", "GELU",
                 "2048 to 256 + bias"],
        "model": {"IMAGE_SIZE": 224, "PATCH_SIZE": 16, "HIDDEN_DIM": 768, "NUM_LAYERS": 12,
                  "NUM_HEADS": 12, "MLP_DIM": 3072, "QKV_BIAS": True},
        "loss": {"weight": 0.9, "slices": 4096}, "drop path": 0.1, "precision": "bfloat16",
    },
    # zhirongw/lemniscate.pytorch f7cfe29: main.py, lib/NCEAverage.py
    "npid/npid_8gpu_resnet50": {
        "epochs": 200, "batch": 256, "optimizer": SGD,
        "learning rate": by_epoch(steps(0.03, (120, 160)), 200),
        "weight decay": constant(1e-4), "decays": everything,
        "views": [[crop(224, 0.2, "bilinear"), GREY, jitter(0.4, 0.4, 0.4, 0.4, p=1.0), FLIP]],
        "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 128 + bias"],
        "loss": {**NPID_LOSS, "negative_sampling_params.num_negatives": 4096}, "precision": "float32",
    },
    # VISSL: npid/npid++_4nodes_resnet.yaml
    "npid/npid++_32gpu_resnet50": {
        "epochs": 800, "batch": 1024, "optimizer": SGD,
        "learning rate": cosine_by_epoch(0.12, 800, end=0.00012),
        "weight decay": constant(1e-4), "decays": no_norms,
        "views": [[jitter(0.4, 0.4, 0.4, 0.4, p=1.0), crop(224, 0.08, "bilinear"), FLIP]],
        "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 128 + bias"],
        "loss": {**NPID_LOSS, "negative_sampling_params.num_negatives": 32000}, "precision": "float32",
    },
    # VISSL: pirl/pirl_jigsaw_4node_resnet50.yaml
    "pirl/pirl_32gpu_resnet50": {
        "epochs": 800, "batch": 1024, "optimizer": SGD,
        "learning rate": cosine_by_epoch(0.12, 800, end=0.00012),
        "weight decay": constant(1e-4), "decays": weights,
        "views": [[
            ("ImgPilToPatchesAndImage", {
                "crop_scale_image": [0.08, 1.0], "crop_size_image": 224,
                "crop_scale_patches": [0.6, 1.0], "crop_size_patches": 255, "num_patches": 9,
                "permute_patches": True}),
            jitter(0.4, 0.4, 0.4, 0.2, p=1.0), ("ImgPilRandomPhotometric", {"p": 0.66}), GREY, FLIP,
        ]],
        "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 128 + bias", "1152 to 128 + bias", "2048 to 128 + bias"],
        "loss": {**NPID_LOSS, "negative_sampling_params.num_negatives": 32000,
                 "loss_weights": [0.5, 0.5], "update_mem_with_emb_index": 1},
        "precision": "float32",
    },
    # VISSL: rotnet/rotnet_8gpu_resnet.yaml
    "rotnet/rotnet_8gpu_resnet50": {
        "epochs": 105, "batch": 256, "optimizer": SGD,
        "learning rate": by_epoch(steps(0.1, (30, 60, 90, 100)), 105),
        "weight decay": constant(1e-4), "decays": no_norms,
        "views": [[("ImgRotatePil", {"num_angles": 4, "num_rotations_per_img": 1}), crop(224, 0.08, "bilinear"), FLIP]],
        "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 4 + bias"], "loss": {"ignore_index": -1}, "precision": "float32",
    },
    # VISSL: jigsaw/jigsaw_8gpu_resnet.yaml
    "jigsaw/jigsaw_8gpu_resnet50": {
        "epochs": 105, "batch": 256, "optimizer": SGD,
        "learning rate": by_epoch(
            lambda e: 0.025 + 0.075 * e / 5 if e < 5 else steps(0.1, (30, 60, 90, 100))(e), 105
        ),
        "weight decay": constant(1e-4), "decays": no_norms,
        "views": [[
            ("Resize", {"size": 256}), FLIP, ("RandomCrop", {"size": 255}), ("grey", 0.66),
            ("ImgPatchesFromTensor", {"num_patches": 9, "patch_jitter": 21}),
            ("ShuffleImgPatches", {"perm_file": "hamming_perms_2000_patches_9_max_avg.npy"}),
        ]],
        "normalize": IMAGENET,
        "batch norm": "views together, each rank", "last norm of a block": "one",
        "head": ["2048 to 1000 + bias", "norm", "ReLU", "9000 to 2000 + bias"],
        "loss": {"ignore_index": -1}, "precision": "float32",
    },
}  # fmt: skip


# ---- what ours are


@cache
def ours(name: str) -> tuple[dict[str, Any], nn.Module]:
    config = resolve([f"config=pretrain/{name}"]).config
    options, facts = read(config, ModelOptions), run_facts(config)
    with torch.device("meta"):
        model = build_model(options, views=facts.views_per_image)
    method = _method(config, model, facts.global_batch_size)
    found = {
        "epochs": config.OPTIMIZER.num_epochs,
        "batch": facts.global_batch_size * config.OPTIMIZER.accumulate, "clip": _clip(options),
        "precision": config.MACHINE.PRECISION, "frozen": _frozen(options),
        **_trained(config, model), **_network(options, model, method), **_views(config),
        **_of_loss(config, method),
    }  # fmt: skip
    if method and "pass_apart" in inspect.getsource(type(method)):
        found["batch norm"] = found["batch norm"].replace("views together", "each view")
    return found, model


def _method(config: Any, model: nn.Module, images: int) -> Any:
    """The method that owns its network; of distillation, which reads its teacher, and others None."""
    name = config.LOSS.name
    if not name or name == "distillation_loss" or not owns_network(LOSSES.get(name)):
        return None
    with torch.device("meta"):
        return build_loss(config, model, 1, torch.device("meta"), [images])


def _heads(method: Any) -> list[nn.Module]:
    part = getattr(method, "student", method)
    names = [name for name in ("head", "patch_head") if getattr(part, name, None) is not None]
    if names or method is None or "options" in inspect.signature(type(method)).parameters:
        return [getattr(part, name) for name in names]
    return [each for name, each in method.named_children() if name != "teacher"]


def _frozen(options: ModelOptions) -> tuple[dict[str, int], str] | None:
    """Parameters, each with so many updates; and what stops them."""
    found = dict(map(tuple, options.TEMP_FROZEN_PARAMS_ITER_MAP))
    return (found, options.TEMP_FROZEN_PARAMS_BY) if found else None


def _clip(options: ModelOptions) -> dict[str, Any] | None:
    clip = options.GRAD_CLIP
    each = "module" if clip.PER_MODULE else clip.PER_PARAMETER
    return {"norm": clip.MAX_NORM, "each": each} if clip.USE_GRAD_CLIP else None


def _trained(config: Any, model: nn.Module) -> dict[str, Any]:
    """Of the real optimizer, on its real schedules."""
    options = read(config, OptimizerOptions)
    optimizer = build_optimizer(model, options, torch.device("cpu"), options.num_epochs or 0)
    names = {id(each): name for name, each in model.named_parameters()}
    rates: dict[str, list[float]] = {}
    decay: list[float] = []
    decays: dict[str, float] = {}
    factors: dict[str, float] = {}
    for point in POINTS:
        epochs = options.num_epochs or 0
        optimizer.on_epoch(int(point * epochs) / epochs)
        optimizer.schedule(point)
        decay.append(max(group["weight_decay"] for group in optimizer.param_groups))
        parts: dict[str, dict[str, float]] = {}
        for group in optimizer.param_groups:
            inside = [names[id(each)] for each in group["params"]]
            part = "predictor" if all("predictor" in name for name in inside) else "rest"
            parts.setdefault(part, {}).update(dict.fromkeys(inside, group["lr"]))
            if group["weight_decay"]:
                decays |= dict.fromkeys(inside, group["weight_decay"] / decay[-1])
        for part, each in parts.items():
            rates.setdefault(part, []).append(max(each.values()))
            factors |= {name: rate / (max(each.values()) or 1.0) for name, rate in each.items()}
    known = {"learning rate": rates["rest"], "weight decay": decay, "decays": decays}
    if set(factors.values()) != {1.0}:
        known["rates"] = factors
    if rates.get("predictor", rates["rest"]) != rates["rest"]:
        known["of the predictor"] = rates["predictor"]
    if (
        config.LOSS.name == "barlow_twins_loss"
    ):  # plain SGD: a factor of the loss is one of the rate
        scale = config.LOSS.barlow_twins_loss.scale_loss
        known["of biases and norms"] = [rate * scale for rate in rates["rest"]]
    return {**known, "optimizer": _optimizer(options)}


def _optimizer(options: OptimizerOptions) -> dict[str, Any]:
    if options.name == "adamw":
        return {"name": "adamw", "betas": tuple(options.betas)}
    if options.name == "lars":
        vectors = options.exclude_bias_and_norm
        return {"name": "lars", "momentum": options.momentum, "eta": options.eta,
                "vectors are plain SGD": vectors}  # fmt: skip
    plain = {"name": options.name, "momentum": options.momentum, "nesterov": options.nesterov}
    larc = options.larc_config
    return (
        {**plain, "trust coefficient": larc.trust_coefficient, "clip": larc.clip}
        if options.use_larc
        else plain
    )


def _network(options: ModelOptions, model: nn.Module, method: Any) -> dict[str, Any]:
    heads = [*model.heads, *_heads(method)]
    found: dict[str, Any] = {"head": [text for part in heads for text in _layers(part)]}
    transformers = {"vision_transformer": "VISION_TRANSFORMERS", "beit": "BEIT"}
    if options.TRUNK.NAME in transformers:
        vit = getattr(options.TRUNK, transformers[options.TRUNK.NAME])
        return {**found, "model": vars(vit), "drop path": vit.DROP_PATH_RATE}
    if options.TRUNK.NAME == "timm":
        trunk: Any = model.trunk
        rates = [getattr(each.drop_path1, "drop_prob", 0.0) for each in trunk.blocks]
        attention = trunk.blocks[0].attn
        return {
            **found,
            "model": {"registers": trunk.num_prefix_tokens - 1, "blocks": len(rates),
                      "positions": next(kind.__name__ for kind in type(trunk.rope).__mro__
                                       if kind.__module__.startswith("timm.")),
                      "layer scale": options.TRUNK.TIMM.arguments["init_values"]},
            "bias of keys": "k_bias" in dict(attention.named_parameters()),
            "drop path": rates[-1],
            "drop path of blocks": "equal" if len(set(rates)) == 1 else "rising",
        }  # fmt: skip
    sync = options.SYNC_BN_CONFIG
    ranks = {0: "all ranks"}.get(sync.GROUP_SIZE, f"{sync.GROUP_SIZE} ranks")
    views = "each view" if getattr(model, "views_apart", 0) else "views together"
    return {
        **found,
        "batch norm": f"{views}, {ranks if sync.CONVERT_BN_TO_SYNC_BN else 'each rank'}",
        "last norm of a block": "zero" if options.TRUNK.RESNETS.ZERO_INIT_RESIDUAL else "one",
    }


def _layers(module: nn.Module) -> Iterator[str]:
    for each in module.modules():
        if isinstance(each, nn.Linear):
            bias = "" if each.bias is None else " + bias"
            yield f"{each.in_features} to {each.out_features}{bias}"
        elif isinstance(each, nn.BatchNorm1d):
            yield "norm" if each.affine else "plain norm"
        elif hasattr(each, "weight_v"):
            learned = each.weight_g.requires_grad
            lengths = ", learned lengths" if learned else ""
            yield f"{each.weight_v.shape[1]} to {each.weight_v.shape[0]} unit length{lengths}"
        elif isinstance(each, (nn.ReLU, nn.GELU)):
            yield type(each).__name__


# ---- transforms, view by view

# Of these the transforms themselves are looked at; of others, their arguments.
READ = (
    "RandomResizedCrop", "RandomHorizontalFlip", "RandomGrayscale", "ColorJitter", "RandomSolarize",
    "ImgPilColorDistortion", "ImgPilGaussianBlur", "ImgPilRandomSolarize",
)  # fmt: skip


def _views(config: Any) -> dict[str, Any]:
    views: list[list[tuple[Any, ...]]] = [[]]
    normalize = None
    for entry in config.DATA.TRAIN.TRANSFORMS:
        name, arguments = _called(dict(entry))
        if name == "ImgReplicatePil":
            views = [list(views[0]) for _ in range(arguments["num_times"])]
        elif name == "ImgPilToMultiCrop":
            views = [[_crop(each.named)] for each in TRANSFORMS.get(name)(**arguments).crops]
        elif name == "ImgPilMultiCropRandomApply":
            (inner,) = arguments["transforms"]
            for view, p in zip(views, arguments["prob"], strict=True):
                ((kind, always, *rest),) = _operations(*_called(dict(inner)))
                assert always == 1.0
                view.extend([(kind, p, *rest)] if p else [])
        elif name == "Normalize":
            normalize = {key: tuple(arguments[key]) for key in ("mean", "std")}
        elif name != "ToTensor":
            indices = entry.get("indices", range(len(views)))
            for index in indices:
                views[index].extend(_operations(name, arguments))
    return {"views": views, "normalize": normalize}


def _called(entry: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments, with the defaults of those that are not given."""
    name = entry["name"]
    given = {key: value for key, value in entry.items() if key not in TRANSFORMS.entry_keys}
    bound = inspect.signature(TRANSFORMS.get(name)).bind(**given)
    bound.apply_defaults()
    return name, dict(bound.arguments)


def _operations(name: str, arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    if name not in READ:
        given = {key: _plain(value) for key, value in arguments.items() if value is not None}
        return [(name, given)]
    made = TRANSFORMS.get(name)(**arguments)
    match name:
        case "RandomResizedCrop":
            return [_crop(made)]
        case "RandomHorizontalFlip":
            return [("flip", made.p)]
        case "RandomGrayscale":
            return [("grey", made.p)]
        case "ColorJitter":
            return [_jitter(made, 1.0)]
        case "ImgPilColorDistortion":
            apply, grey = made.transforms
            jitter = _jitter(apply.transforms[0].named, round(apply.p, 6))
            return [jitter, ("grey", grey.named.p)]
        case "ImgPilGaussianBlur":
            return [("blur", made.p, made.radius_min, made.radius_max)]
        case "ImgPilRandomSolarize":
            return [("solarize", round(made.p, 6), made.threshold)]
    return [("solarize", made.p, made.threshold)]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _crop(made: Any) -> tuple[Any, ...]:
    assert made.ratio == (3 / 4, 4 / 3)
    how = {InterpolationMode.BILINEAR: "bilinear", InterpolationMode.BICUBIC: "bicubic"}
    return "crop", made.size[0], tuple(made.scale), how[made.interpolation]


def _jitter(made: ColorJitter, p: float) -> tuple[Any, ...]:
    upper = (
        made.brightness[1] - 1,
        made.contrast[1] - 1,
        made.saturation[1] - 1,
        (made.hue or [0, 0])[1],
    )  # type: ignore[index]
    return "jitter", p, *(round(each, 6) for each in upper)


# ---- the loss


def _of_loss(config: Any, method: Any) -> dict[str, Any]:
    name = config.LOSS.name
    section = config.LOSS.get(name) if name else None
    found: dict[str, Any] = {"loss": section}
    if name == "ijepa_loss":
        base = section.momentum
        found["teacher's momentum"] = [base + (1 - base) * p for p in POINTS]
        found["masks"] = OmegaConf.to_container(config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS)
    if name == "capi_loss":
        found["teacher's momentum"] = [method.teacher._momentum_at(p) for p in POINTS]
        found["masks"] = OmegaConf.to_container(config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS)
    if name == "msn_loss":
        base, end = section.momentum, section.momentum_end
        found["teacher's momentum"] = [base + (end - base) * p for p in POINTS]
    if name in ("dinov2_loss", "dinov3_loss", "msn_loss"):
        found["masks"] = OmegaConf.to_container(config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS)
    if name in ("moco_v3", "byol_loss", "dino_loss", "ibot_loss", "dinov2_loss", "dinov3_loss"):
        found["teacher's momentum"] = [rising_momentum(section.momentum, p) for p in POINTS]
    if name in ("dino_loss", "ibot_loss", "dinov2_loss", "dinov3_loss"):
        options: Any = OmegaConf.to_object(section)
        images, batch = 1_281_167, run_facts(config).global_batch_size
        found["teacher's temperature"] = [
            _temperature(
                options,
                int(point * config.OPTIMIZER.num_epochs * (images // batch)),
                int(point * config.OPTIMIZER.num_epochs),
            )
            for point in POINTS
        ]
    return found


def _temperature(options: Any, iteration: int, epoch: int) -> float:
    if hasattr(options, "teacher_temp"):
        return float(options.teacher_temp(Step.alone(iteration, epoch=epoch)))
    of_class, of_patch = options.temperatures(Step.alone(iteration=iteration, epoch=epoch))
    assert of_class == of_patch
    return float(of_class)


# ---- the comparison


def differing(official: Mapping[str, Any], found: Mapping[str, Any], model: nn.Module) -> set[str]:
    return {key for key, value in official.items() if not _same(key, value, found.get(key), model)}


def _same(key: str, official: Any, found: Any, model: nn.Module) -> bool:
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if key == "rates":
        return _close({name: official(name) for name, _ in trained}, found)
    if key == "decays":
        owner = {name: model.get_submodule(name.rpartition(".")[0]) for name, _ in trained}
        factors = {name: float(official(name, each, owner[name])) for name, each in trained}
        return _close({name: factor for name, factor in factors.items() if factor}, found)
    if key in ("loss", "model"):
        return found is not None and all(
            _close(value, _at(found, path)) for path, value in official.items()
        )
    return _close(official, found)


def _at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return list(tree) if isinstance(tree, Sequence) and not isinstance(tree, str) else tree


def _close(one: Any, two: Any) -> bool:
    """Numbers to a thousandth: schedules count their steps from 0 to n or to n - 1."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_close(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(_close, one, two))
    if isinstance(one, float) and isinstance(two, (int, float)):
        return two == pytest.approx(one, rel=1e-3, abs=1e-9)
    return bool(one == two)


def named_in_yaml(name: str) -> list[str]:
    """What its YAML, or one that it is based on, says to differ, each with a reason."""
    files = [Path(layer.origin) for layer in compose([f"config=pretrain/{name}"]).layers]
    return re.findall(r"# differs: ([^:\n]+): *\S.*", "".join(map(Path.read_text, files)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_as_published_but_for_what_it_names(name: str) -> None:
    found, model = ours(name)
    official = OFFICIAL[name]
    named = named_in_yaml(name)
    assert len(set(named)) == len(named)  # none twice
    different = differing(official, found, model)
    shown = {key: (official.get(key), found.get(key)) for key in different ^ set(named)}
    assert different == set(named), shown


def test_no_published_value_goes_uncompared() -> None:
    """What was published with a clip, or with weights that stay for a while, says so above."""
    for name in RECIPES:
        found, _ = ours(name)
        for key in ("clip", "frozen", "teacher's momentum", "teacher's temperature",
                    "of the predictor", "batch norm", "drop path", "rates"):  # fmt: skip
            assert (found.get(key) is None) == (OFFICIAL[name].get(key) is None), (name, key)
