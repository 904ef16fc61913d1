"""What timm calls a trunk: the function that makes it, and its arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sslengine.errors import ExportError
from sslengine.export.subject import Subject
from sslengine.export.twins import Design, Twin, designed, fill, is_standard, refuse_own_resnets
from sslengine.models.options import TrunkOptions, VisionTransformerOptions


def timm_twin(subject: Subject) -> Twin:
    design = _timm_design(subject.options.TRUNK)
    arguments = {"num_classes": 0, "in_chans": subject.channels, **design.arguments}
    import timm  # it takes half a second, and some trunks are refused before it is needed

    try:
        json.dumps(arguments)
        network = timm.create_model(design.name, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ExportError(f"timm cannot make {design.name} of {arguments}: {error}") from error
    return Twin(design, fill(subject, "timm", design, network))


def _timm_design(options: TrunkOptions) -> Design:
    if options.NAME == "timm":
        return Design(options.TIMM.model.partition(".")[0], options.TIMM.arguments)
    if options.NAME == "torchvision":
        import timm

        name = options.TORCHVISION.model
        if not timm.is_model(name) or options.TORCHVISION.arguments:
            raise ExportError(f"timm has no network with the weights of torchvision's {name}.")
        return Design(name)
    return designed(options, _TIMM, "timm")


def _timm_resnet(trunk: TrunkOptions) -> Design:
    options = trunk.RESNETS
    refuse_own_resnets(options, "timm")
    arguments: dict[str, Any] = {}
    if (options.GROUPS, options.WIDTH_PER_GROUP) != (1, 64):
        arguments = {"cardinality": options.GROUPS, "base_width": options.WIDTH_PER_GROUP}
    if is_standard(options) and options.DEPTH != 200:
        return Design(f"resnet{options.DEPTH}", arguments)
    name = "resnet18" if options.is_basic() else "resnet50"
    return Design(name, {"layers": list(options.stages()), **arguments})


_VITS = {192: "vit_tiny_patch16_224", 384: "vit_small_patch16_224", 1024: "vit_large_patch16_224"}


def _timm_vit(trunk: TrunkOptions) -> Design:
    options = trunk.VISION_TRANSFORMERS
    for key, usual in (("STEM", "patches"), ("ROPE", "none"), ("NORM", "LayerNorm")):
        if (value := getattr(options, key)) != usual:
            path = f"config.MODEL.TRUNK.VISION_TRANSFORMERS.{key}"
            raise ExportError(f"timm has no vision transformer with {path} {value}.")
    arguments = {
        **_of_patches(options),
        "mlp_ratio": _ratio(options),
        "class_token": options.USE_CLASS_TOKEN,
        "global_pool": "token" if options.USE_CLASS_TOKEN else "avg",
        "fc_norm": False,
        "dynamic_img_size": True,
    }
    if options.REGISTER_TOKENS:
        arguments |= {"reg_tokens": options.REGISTER_TOKENS, "no_embed_class": True}
    if not options.PROJ_BIAS:
        arguments["proj_bias"] = False
    if options.LAYER_SCALE:
        arguments["init_values"] = options.LAYER_SCALE
    return Design(_VITS.get(options.HIDDEN_DIM, "vit_base_patch16_224"), arguments)


def _ratio(options: VisionTransformerOptions) -> float:
    """timm cuts width * ratio to a whole number."""
    exact = options.MLP_DIM / options.HIDDEN_DIM
    whole = int(options.HIDDEN_DIM * exact) == options.MLP_DIM
    return exact if whole else (options.MLP_DIM + 0.5) / options.HIDDEN_DIM


def _of_patches(options: Any) -> dict[str, Any]:
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "embed_dim": options.HIDDEN_DIM,
        "depth": options.NUM_LAYERS,
        "num_heads": options.NUM_HEADS,
        "qkv_bias": options.QKV_BIAS,
    }


def _timm_xcit(trunk: TrunkOptions) -> Design:
    options = trunk.XCIT
    arguments = {
        **_of_patches(options),
        "mlp_ratio": options.MLP_RATIO,
        "cls_attn_layers": options.NUM_CLASS_LAYERS,
        "eta": options.ETA,
        "tokens_norm": options.TOKENS_NORM,
    }
    return Design("xcit_small_12_p16_224", arguments)


def _timm_beit(trunk: TrunkOptions) -> Design:
    options = trunk.BEIT
    arguments = {
        **_of_patches(options),
        "mlp_ratio": options.MLP_RATIO,
        "init_values": options.INIT_VALUES or 0.0,  # null would be the default of timm
        "use_abs_pos_emb": options.USE_ABS_POS_EMB,
        "use_rel_pos_bias": options.USE_REL_POS_BIAS,
        "use_shared_rel_pos_bias": options.USE_SHARED_REL_POS_BIAS,
        "global_pool": "avg" if options.USE_MEAN_POOLING else "token",
    }
    if options.NORM_BEFORE_POOLING:
        arguments["use_fc_norm"] = False  # newer versions of timm have it
    return Design("beit_base_patch16_224", arguments)


def _timm_swin(trunk: TrunkOptions) -> Design:
    options = trunk.SWIN_TRANSFORMER
    arguments = {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "embed_dim": options.EMBED_DIM,
        "depths": options.DEPTHS,
        "num_heads": options.NUM_HEADS,
        "window_size": options.WINDOW_SIZE,
        "mlp_ratio": options.MLP_RATIO,
        "qkv_bias": options.QKV_BIAS,
        "strict_img_size": False,
    }
    return Design("swin_tiny_patch4_window7_224", arguments)


def _timm_convnext(trunk: TrunkOptions) -> Design:
    options = trunk.CONVNEXT
    return Design("convnext_tiny", {"depths": options.DEPTH, "dims": options.DIMS})


def _timm_mobilenet(trunk: TrunkOptions) -> Design:
    if trunk.MOBILE_NET.TRUNK_ONLY:
        raise ExportError(
            "timm's mobilenetv3_large_100 has one convolution more than this trunk; "
            "config.MODEL.TRUNK.MOBILE_NET.TRUNK_ONLY: false has it."
        )
    return Design("mobilenetv3_large_100")


_TIMM: dict[str, Callable[[TrunkOptions], Design]] = {
    "resnet": _timm_resnet,
    "vision_transformer": _timm_vit,
    "vision_transformer_fsdp": _timm_vit,
    "xcit": _timm_xcit,
    "xcit_fsdp": _timm_xcit,
    "beit": _timm_beit,
    "swin_transformer": _timm_swin,
    "swin_transformer_official": _timm_swin,
    "convnext": _timm_convnext,
    "mobilenetv3_timm": _timm_mobilenet,
}
