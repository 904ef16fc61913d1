"""Options of engines: `config.EXTRACT_FEATURES`, `FINETUNE`, `HEAD_SWEEP`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sslengine.config.ranges import above, at_least, choice, empty_lists
from sslengine.config.sections import section

LINEAR, ATTENTIVE = "linear", "attentive"
# Of an attentive head: the form of attentive_probe.
FORMS = {ATTENTIVE: "query", "attentive_block": "block", "attentive_blocks": "blocks"}
# Where the best head is chosen.
HELD_OUT, TEST = "held_out", "test"


@section("EXTRACT_FEATURES")
@dataclass
class ExtractFeaturesOptions:
    # Folder of the features; empty: `features` in the run's folder.
    OUTPUT_DIR: str = ""
    # Images per file; -1: one file per rank, 0: one per batch.
    CHUNK_THRESHOLD: int = -1


@section("FINETUNE")
@dataclass
class FinetuneOptions:
    # The name of the row in the table, and the start of the folders' names in `finetune`.
    NAME: str = "finetune"
    # Also train the same network from random weights, for comparison.
    UNTRAINED: bool = True

    def check(self) -> Iterator[str]:
        if not re.fullmatch(r"[\w.%+-]+", self.NAME) or self.NAME.startswith("."):
            yield f"NAME: expected letters, digits, and - _ . % +; got {self.NAME!r}."


@section("HEAD_SWEEP")
@dataclass
class SweepOptions:
    """The heads that the engine `sweep` trains on one frozen forward pass."""

    # linear; attentive: a learned query on all tokens; attentive_block: in a transformer block;
    # attentive_blocks: behind blocks of self-attention.
    HEAD: str = choice(LINEAR, *FORMS)
    # Of attentive_blocks: the number of blocks, with that of the query.
    DEPTH: int = at_least(1, 4)
    # Of attentive heads; 0: one for every 64 values of a token.
    ATTENTION_HEADS: int = at_least(0, 0)
    # Features that heads get, `a+b` for two joined; []: with class tokens, those of the last BLOCKS
    # blocks, without and with the mean of the patches; else the final feature; for attentive heads
    # the patches, or the last feature map.
    FEATURES: list[str] = field(default_factory=list)
    # With attentive heads: features N x C that get linear heads, so that one sweep compares them.
    LINEAR_FEATURES: list[str] = field(default_factory=list)
    # The class tokens of how many last blocks; all of a trunk that has fewer.
    BLOCKS: list[int] = at_least(1, [1, 4])
    # Also each of them with the mean of the patches.
    WITH_PATCH_MEAN: bool = True
    # Factors on the learning rate of config.OPTIMIZER: a head for each, and each feature.
    LR: list[float] = above(0, [0.01, 0.1, 1.0])
    # A head for each of them too.
    WEIGHT_DECAY: list[float] = at_least(0, [0.0])
    # Before each head, for each token of attentive ones: none, layer, or batch (no learned scale),
    # which sees the images of its rank, unless MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN is true.
    NORM: str = choice("none", "batch", "layer")
    # Where the best head is chosen: held_out, a share of TRAIN that is not trained on; test, the
    # test images, as some published protocols do.
    SELECT_ON: str = choice(HELD_OUT, TEST)
    # That share of TRAIN.
    HELD_OUT: float = above(0, 0.1, below=1)
    # Also sweep heads on the trunk as it is initialised, for comparison.
    UNTRAINED: bool = False

    def check(self) -> Iterator[str]:
        if self.LINEAR_FEATURES and self.HEAD == LINEAR:
            yield "LINEAR_FEATURES: they belong to attentive heads; name them in FEATURES."
        yield from empty_lists(self, "LR", "WEIGHT_DECAY", "BLOCKS")
