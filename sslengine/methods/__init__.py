"""One file per self-supervised method: loss, options, heads, teacher or queue."""

from sslengine.registry import FROM_MODELS, HEADS, LOSSES, PARAM_GROUPS

# Of a command that names no method.
DEFAULT = "simclr"

LOSSES.declare("sslengine.methods.simclr", "simclr_info_nce_loss", "multicrop_simclr_info_nce_loss")
for name in (
    "moco", "byol", "simsiam", "barlow_twins", "vicreg", "swav", "dino", "ibot", "dinov2", "dinov3",
    "msn", "distillation", "ijepa", "capi", "clip", "simmim", "mae",
    "data2vec", "deepclusterv2",
):  # fmt: skip
    LOSSES.declare(f"sslengine.methods.{name}", f"{name}_loss")
LOSSES.declare("sslengine.methods.memory_bank", "nce_loss_with_memory")
for name in ("lejepa", "visreg", "moco_v3", "nnclr", "supcon", "ressl", "vicregl", "densecl"):
    LOSSES.declare(f"sslengine.methods.{name}", name)
LOSSES.declare(
    "sslengine.methods.supervised",
    "cross_entropy_multiple_output_single_target",
    "bce_logits_multiple_output_single_target",
)

FROM_MODELS["mae"] = "mae_loss"

PARAM_GROUPS.declare("sslengine.methods.simsiam", "predictor_alone_is_head")

HEADS.declare("sslengine.methods.swav", "swav_head", "swav_head_fsdp")
HEADS.declare("sslengine.methods.dino", "dino_head", "dino_head_fsdp")
HEADS.declare("sslengine.methods.msn", "msn_head")
HEADS.declare("sslengine.methods.simmim", "pixel_head")
