"""`segmentation` of EVALUATE.PROTOCOLS: a linear head trained on the maps that `dense` judges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sslengine.distributed.ranks import is_primary
from sslengine.engines.dense import Maps, stored_maps
from sslengine.engines.judged_images import Found, Judged
from sslengine.engines.stored import Network
from sslengine.evaluation.options import DenseOptions
from sslengine.evaluation.outcome import Outcome
from sslengine.evaluation.segmentation import segmentation
from sslengine.registry import PROTOCOLS


@PROTOCOLS.register("segmentation")
def judge_segmentation(judged: Judged) -> Found:
    """Rank 0 trains the heads. Collective."""
    maps = stored_maps(judged)
    if not is_primary():
        return {}
    return {(each.name, maps.layer): _judge(judged, each, maps) for each in maps.networks}


def _judge(judged: Judged, network: Network, maps: Maps) -> Outcome:
    size = maps.side, maps.side
    train, test = (maps.of(split, network) for split in ("TRAIN", "TEST"))
    wanted = torch.from_numpy(np.stack([*maps.masks_of("TRAIN", network, size)]))
    shown = [torch.from_numpy(each) for each in maps.masks_of("TEST", network)]
    options: DenseOptions = judged.dense
    outcome = segmentation(
        train, wanted, test, shown, judged.segmentation, options.IGNORED, judged.run.device
    )
    about = maps.about(network, train, test)
    return replace(outcome, details={**outcome.details, **about})
