"""Trunks, heads, and the model that joins them."""

from sslengine.registry import HEADS, MODELS, TRUNKS

MODELS.declare("sslengine.models.build", "multi_input_output_model")

TRUNKS.base = "sslengine.models.trunks.base:Trunk"
TRUNKS.declare("sslengine.models.trunks.resnet", "resnet")
TRUNKS.declare(
    "sslengine.models.trunks.vision_transformer", "vision_transformer", "vision_transformer_fsdp"
)
TRUNKS.declare(
    "sslengine.models.trunks.aliases",
    "convnext", "swin_transformer", "swin_transformer_official", "xcit", "xcit_fsdp",
)  # fmt: skip
TRUNKS.declare(
    "sslengine.models.trunks.classy", "regnet", "regnet_v2", "regnet_fsdp", "efficientnet"
)
TRUNKS.declare("sslengine.models.trunks.from_timm", "timm")
TRUNKS.declare("sslengine.models.trunks.from_torchvision", "torchvision")

HEADS.declare(
    "sslengine.models.heads.mlp",
    "mlp", "mlp_fsdp", "eval_mlp", "eval_mlp_fsdp", "siamese_concat_view", "identity",
    "predictor_head",
)  # fmt: skip
HEADS.declare("sslengine.models.heads.probes", "linear_probe", "attentive_probe")
