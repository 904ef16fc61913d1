"""`segmentation` of EVALUATE.PROTOCOLS: a linear head trained on frozen maps, as DINOv2 and v3 do.

The head: dropout of whole channels, batch normalisation, a 1 x 1 convolution. Its map of logits is
enlarged to the mask, for the loss and for the answers. Pixels without a class do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.ranks import is_primary
from sslengine.engines.dense import Maps, resize_mask, stored_maps
from sslengine.engines.features import Network
from sslengine.engines.on_images import Found, Judged
from sslengine.errors import DataError
from sslengine.evaluate.dense import IGNORED, Confusion, note_map
from sslengine.evaluate.features import expect_finite
from sslengine.evaluate.options import SegmentationOptions
from sslengine.evaluate.outcome import Outcome, note_choice, protocol
from sslengine.registry import PROTOCOLS

DROPOUT, CLIP, SEED = 0.1, 35.0, 0
WARM_UP = 1500 / 40_000  # of the iterations
NONE = -100  # the number of a pixel without a class


@PROTOCOLS.register("segmentation")
def judge_segmentation(judged: Judged) -> Found:
    """Train the heads on rank 0. Collective."""
    maps = stored_maps(judged)
    if not is_primary():
        return {}
    return {(each.name, maps.layer): _judge(judged, each, maps) for each in maps.networks}


def _judge(judged: Judged, network: Network, maps: Maps) -> Outcome:
    size = maps.side, maps.side
    train, test = (maps.read(split, network) for split in ("TRAIN", "TEST"))
    masks = [resize_mask(each, size) for each in maps.masks("TRAIN", network)]
    wanted = torch.from_numpy(np.stack(masks))
    shown = [torch.from_numpy(each.astype(np.int32)) for each in maps.masks("TEST", network)]
    options = judged.EVALUATE.DENSE
    outcome = segmentation(
        train, wanted, test, shown, judged.EVALUATE.SEGMENTATION, options.IGNORED, judged.run.device
    )
    about = maps.about(network, train, test)
    return replace(outcome, details={**outcome.details, **about})


@protocol("Segmentation")
def segmentation(
    train: Tensor,
    train_masks: Tensor,
    test: Tensor,
    test_masks: Sequence[Tensor],
    options: SegmentationOptions | None = None,
    ignored: Sequence[int] = IGNORED,
    device: torch.device | None = None,
) -> Outcome:
    """Judge maps N x D x h x w by masks: of TRAIN N x H x W, of TEST of any sizes."""
    expect_finite(train.flatten(1), "training")
    expect_finite(test.flatten(1), "test")
    options, out = options or SegmentationOptions(), torch.tensor(ignored)
    seen = _known_classes(train_masks.unique(), out)
    shown = _known_classes(torch.cat([each.unique() for each in test_masks]).unique(), out)
    if len(seen) < 2:
        raise DataError(f"the masks of TRAIN have {len(seen)} classes; expected 2 or more.")
    if not len(shown):
        raise DataError("all pixels of the masks of TEST are ignored.")
    head = train_head(train, _places(train_masks, seen), len(seen), options, device)
    found = Confusion(torch.cat([seen, shown]).unique())
    for maps, mask in zip(test, test_masks, strict=True):
        answers = seen[enlarged(head(maps[None]), mask.shape)[0].argmax(dim=0).cpu()]
        found.add(answers.flatten(), mask.flatten().long())
    details = {**vars(options), "classes": len(found.classes)}
    notes = note_choice((), (), found.table.sum(0)) + note_map(train)
    return Outcome(found.metrics() | found.constant(train_masks.long()), notes, details)


def train_head(
    maps: Tensor,
    places: Tensor,
    classes: int,
    options: SegmentationOptions,
    device: torch.device | None = None,
) -> Callable[[Tensor], Tensor]:
    """Return what makes maps of logits of maps. places: N x H x W, a class' number, or NONE."""
    count, width, high, wide = maps.shape
    if min(options.BATCH, count) * high * wide < 2:
        raise DataError("one training image, and one place in its map, cannot be normalised.")
    draw = torch.Generator().manual_seed(SEED)
    norm = nn.BatchNorm2d(width, device=device)
    # Its own start would draw from the global stream.
    head = nn.utils.skip_init(nn.Conv2d, width, classes, 1, device=device or "cpu")
    with torch.no_grad():
        head.weight.copy_(0.01 * torch.randn(head.weight.shape, generator=draw))
        head.bias.zero_()  # type: ignore[union-attr]
    learnt = [*norm.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(learnt, weight_decay=options.WEIGHT_DECAY)
    for step, images in enumerate(_batches(count, options, draw)):
        optimiser.param_groups[0]["lr"] = options.LR * rate(step, options.ITERATIONS)
        kept = torch.rand(len(images), width, 1, 1, generator=draw) >= DROPOUT
        some, wanted = (each[images].to(device) for each in (maps.float(), places))
        logits = head(norm(some * kept.to(device) / (1 - DROPOUT)))
        optimiser.zero_grad()
        _loss(enlarged(logits, wanted.shape[1:]), wanted).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learnt, CLIP)
        optimiser.step()
    norm.eval()
    return lambda some: head(norm(some.float().to(device))).detach()


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate: up from 0, then along half a wave of a cosine."""
    warm_up = WARM_UP * steps
    if step < warm_up:
        return (step / warm_up * (1 - 1e-6) + 1e-6) * (1 - step / steps)
    return (1 + math.cos(math.pi * (step + 1) / steps)) / 2


def enlarged(logits: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)


def _loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Average over the pixels that have a class; 0 if none has."""
    total: Tensor = F.cross_entropy(logits, wanted, ignore_index=NONE, reduction="sum")
    return total / (wanted != NONE).sum().clamp(min=1)


def _batches(count: int, options: SegmentationOptions, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield numbers of images, each as often as the others."""
    size, order = min(options.BATCH, count), torch.empty(0, dtype=torch.long)
    for _ in range(options.ITERATIONS):
        if len(order) < size:
            order = torch.cat([order, torch.randperm(count, generator=draw)])
        yield order[:size]
        order = order[size:]


def _known_classes(classes: Tensor, ignored: Tensor) -> Tensor:
    return classes.long()[~torch.isin(classes, ignored)]


def _places(masks: Tensor, classes: Tensor) -> Tensor:
    known = torch.isin(masks, classes)
    places = torch.searchsorted(classes, masks.long().clamp(max=int(classes[-1])))
    return places.masked_fill(~known, NONE)
