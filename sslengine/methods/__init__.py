"""One file per self-supervised method: loss, options, heads, teacher or queue."""

from sslengine.registry import FROM_MODELS, HEADS, LOSSES, PARAM_GROUPS

# Of a command that names no method.
DEFAULT = "simclr"

LOSSES.declare("sslengine.methods.simclr", "simclr_info_nce_loss", "multicrop_simclr_info_nce_loss")
LOSSES.declare("sslengine.methods.moco", "moco_loss")
LOSSES.declare("sslengine.methods.byol", "byol_loss")
LOSSES.declare("sslengine.methods.simsiam", "simsiam_loss")
LOSSES.declare("sslengine.methods.barlow_twins", "barlow_twins_loss")
LOSSES.declare("sslengine.methods.vicreg", "vicreg_loss")
LOSSES.declare("sslengine.methods.swav", "swav_loss")
LOSSES.declare("sslengine.methods.dino", "dino_loss")
LOSSES.declare("sslengine.methods.ibot", "ibot_loss")
LOSSES.declare("sslengine.methods.dinov2", "dinov2_loss")
LOSSES.declare("sslengine.methods.dinov3", "dinov3_loss")
LOSSES.declare("sslengine.methods.msn", "msn_loss")
LOSSES.declare("sslengine.methods.distillation", "distillation_loss")
LOSSES.declare("sslengine.methods.ijepa", "ijepa_loss")
LOSSES.declare("sslengine.methods.capi", "capi_loss")
LOSSES.declare("sslengine.methods.simmim", "simmim_loss")
LOSSES.declare("sslengine.methods.mae", "mae_loss")
LOSSES.declare("sslengine.methods.data2vec", "data2vec_loss")
LOSSES.declare("sslengine.methods.deepclusterv2", "deepclusterv2_loss")
LOSSES.declare("sslengine.methods.memory_bank", "nce_loss_with_memory")
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
