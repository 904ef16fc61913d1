"""The version of each protocol, which every row of a report names.

It is raised when the same features would get another number: compare rows of one version alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from sslengine.evaluate.options import PROTOCOLS

_ALL = (
    "knn", "linear", "label_free", *PROTOCOLS,
    "linear_sweep", "attentive_sweep", "attentive_block_sweep", "attentive_blocks_sweep",
    "finetune",
)  # fmt: skip
# What fits or chooses a linear probe.
_BY_PROBE = (
    "linear", "few_shot_linear", "few_labels", "calibration", "per_class", "domains", "other_sets",
    "corruptions",
)  # fmt: skip
VERSIONS: Mapping[str, int] = {
    **dict.fromkeys(_ALL, 1),
    # 2: penalties half as far from each other, chosen on whole groups. 3: all of them are tried.
    **dict.fromkeys(_BY_PROBE, 3),
    "retrieval": 2,  # images of several classes of which some are unknown take part
    "dense": 2,  # of the classes that the masks show
    # 2: channels are dropped before the normalisation. 3: of the classes that the masks show.
    "segmentation": 3,
}
