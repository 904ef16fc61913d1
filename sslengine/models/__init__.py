"""Trunks, heads, and the model that joins them."""

from sslengine.registry import HEADS, TRUNKS

TRUNKS.declare("sslengine.models.trunks.resnet", "resnet")
TRUNKS.declare("sslengine.models.trunks.vision_transformer", "vision_transformer")

HEADS.declare("sslengine.models.heads.mlp", "mlp")
HEADS.declare("sslengine.models.heads.eval_mlp", "eval_mlp")
HEADS.declare("sslengine.models.heads.siamese_concat_view", "siamese_concat_view")
HEADS.declare("sslengine.models.heads.identity", "identity")
