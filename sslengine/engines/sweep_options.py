"""`config.HEAD_SWEEP`: the heads that the engine `sweep` trains on one frozen forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sslengine.config.sections import one_of, section

LINEAR, ATTENTIVE = "linear", "attentive"
# Of an attentive head: the form of attentive_probe.
FORMS = {ATTENTIVE: "query", "attentive_block": "block", "attentive_blocks": "blocks"}
# Where the best head is chosen.
HELD_OUT, TEST = "held_out", "test"


@section("HEAD_SWEEP")
@dataclass
class SweepOptions:
    # linear; attentive: a learned query on all tokens; attentive_block: in a transformer block;
    # attentive_blocks: behind blocks of self-attention.
    HEAD: str = LINEAR
    # Of attentive_blocks: the number of blocks, with that of the query.
    DEPTH: int = 4
    # Of attentive heads; 0: one for every 64 values of a token.
    ATTENTION_HEADS: int = 0
    # Features that heads get, `a+b` for two joined; []: with class tokens, those of the last BLOCKS
    # blocks, without and with the mean of the patches; else the final feature; for attentive heads
    # the patches, or the last feature map.
    FEATURES: list[str] = field(default_factory=list)
    # With attentive heads: features N x C that get linear heads, so that one sweep compares them.
    LINEAR_FEATURES: list[str] = field(default_factory=list)
    # The class tokens of how many last blocks; all of a trunk that has fewer.
    BLOCKS: list[int] = field(default_factory=lambda: [1, 4])
    # Also each of them with the mean of the patches.
    WITH_PATCH_MEAN: bool = True
    # Factors on the learning rate of config.OPTIMIZER: a head for each, and each feature.
    LR: list[float] = field(default_factory=lambda: [0.01, 0.1, 1.0])
    # A head for each of them too.
    WEIGHT_DECAY: list[float] = field(default_factory=lambda: [0.0])
    # Before each head, for each token of attentive ones: none, layer, or batch (no learned scale),
    # which sees the images of its rank, unless MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN is true.
    NORM: str = "none"
    # Where the best head is chosen: held_out, a share of TRAIN that is not trained on; test, the
    # test images, as some published protocols do.
    SELECT_ON: str = HELD_OUT
    # That share of TRAIN.
    HELD_OUT: float = 0.1
    # Also sweep heads on the trunk as it is initialised, for comparison.
    UNTRAINED: bool = False

    def check(self) -> Iterator[str]:
        yield from one_of(self, "HEAD", LINEAR, *FORMS)
        if self.LINEAR_FEATURES and self.HEAD == LINEAR:
            yield "LINEAR_FEATURES: they belong to attentive heads; name them in FEATURES."
        yield from one_of(self, "NORM", "none", "batch", "layer")
        yield from one_of(self, "SELECT_ON", HELD_OUT, TEST)
        for key in ("LR", "WEIGHT_DECAY", "BLOCKS"):
            if not getattr(self, key):
                yield f"{key}: expected one value or more."
        if self.LR and min(self.LR) <= 0:
            yield f"LR: expected numbers above 0, got {self.LR}."
        if self.WEIGHT_DECAY and min(self.WEIGHT_DECAY) < 0:
            yield f"WEIGHT_DECAY: expected 0 or more, got {self.WEIGHT_DECAY}."
        if self.BLOCKS and min(self.BLOCKS) < 1:
            yield f"BLOCKS: expected numbers of blocks, got {self.BLOCKS}."
        if self.DEPTH < 1 or self.ATTENTION_HEADS < 0:
            yield "DEPTH, ATTENTION_HEADS: expected 1 or more, and 0 or more."
        if not 0 < self.HELD_OUT < 1:
            yield f"HELD_OUT: expected a share between 0 and 1, got {self.HELD_OUT:g}."
