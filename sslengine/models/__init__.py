"""Trunks, heads, and the model that joins them."""

from sslengine.registry import HEADS, MODELS, TRUNKS

MODELS.declare("sslengine.models.build", "multi_input_output_model")

TRUNKS.base = "sslengine.models.trunks.base:Trunk"
TRUNKS.declare("sslengine.models.trunks.resnet", "resnet")
TRUNKS.declare(
    "sslengine.models.trunks.vision_transformer", "vision_transformer", "vision_transformer_fsdp"
)
TRUNKS.declare("sslengine.models.trunks.regnet", "regnet", "regnet_v2", "regnet_fsdp")
TRUNKS.declare("sslengine.models.trunks.efficientnet", "efficientnet")
TRUNKS.declare("sslengine.models.trunks.xcit", "xcit", "xcit_fsdp")
TRUNKS.declare(
    "sslengine.models.trunks.swin_transformer", "swin_transformer", "swin_transformer_official"
)
TRUNKS.declare("sslengine.models.trunks.convnext", "convnext")
TRUNKS.declare("sslengine.models.trunks.from_timm", "timm")
TRUNKS.declare("sslengine.models.trunks.from_torchvision", "torchvision")

HEADS.declare("sslengine.models.heads.mlp", "mlp", "mlp_fsdp")
HEADS.declare("sslengine.models.heads.eval_mlp", "eval_mlp", "eval_mlp_fsdp")
HEADS.declare("sslengine.models.heads.siamese_concat_view", "siamese_concat_view")
HEADS.declare("sslengine.models.heads.identity", "identity")
HEADS.declare("sslengine.models.heads.predictor", "predictor_head")
HEADS.declare("sslengine.models.heads.probes", "linear_probe", "attentive_probe")
