"""One file per self-supervised method: its loss, its options, the hooks it needs."""

from sslengine.registry import LOSSES

LOSSES.declare("sslengine.methods.simclr", "simclr_info_nce_loss")
LOSSES.declare(
    "sslengine.methods.supervised",
    "cross_entropy_multiple_output_single_target",
    "bce_logits_multiple_output_single_target",
)
