"""Images of a batch mixed with each other.

In `cutmixup_collator` their labels as well. Mixup and CutMix are timm's there; each image is mixed
with the one at the same place from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from timm.data.mixup import Mixup
from torch import Tensor

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch, expect, multicrop_collator
from sslengine.errors import DataError
from sslengine.registry import register_collator

HERE = "COLLATE_FUNCTION_PARAMS of cutmixup_collator"
MODES = ("batch", "pair", "elem")


@register_collator("cutmixup_collator")
def cutmixup_collator(
    batch: Sequence[Sample],
    ssl_method: str | None = None,
    mixup_alpha: float = 1.0,
    cutmix_alpha: float = 0.0,
    cutmix_minmax: list[float] | None = None,
    prob: float = 1.0,
    switch_prob: float = 0.5,
    mode: str = "batch",
    correct_lam: bool = True,
    label_smoothing: float = 0.1,
    num_classes: int | str = 1000,
) -> Batch:
    """Each view of the samples is mixed by itself; `label` holds probabilities of classes. Rows of
    indicators are mixed as the images are; what of one of two images is not known (-1) stays so.

    ssl_method: simclr or moco lays the views out as the collator of that name does; without it,
        or with any other name, `data` is the list of the views.
    mixup_alpha, cutmix_alpha: of the beta distributions of the shares; 0: without it.
    cutmix_minmax: in place of cutmix_alpha, the least and greatest side of the pasted part.
    prob: probability of mixing at all.
    switch_prob: probability of CutMix where both are on.
    mode: batch, pair or elem: the same share for the whole batch, for each pair of images, or for
        each image.
    correct_lam: the share of CutMix is that of the pasted pixels, even where the border of the
        image cuts the part.
    label_smoothing: the share of a label that is spread evenly over all classes.
    num_classes: the number of classes; auto: of TRAIN's.
    """
    if isinstance(num_classes, str):
        raise DataError(f"{HERE}: num_classes: expected a number, or auto; got {num_classes!r}.")
    minmax = None if cutmix_minmax is None else tuple(cutmix_minmax)
    mixes = mixup_alpha > 0 or cutmix_alpha > 0 or minmax is not None
    expect(mixes, f"{HERE}: set one of mixup_alpha, cutmix_alpha and cutmix_minmax.")
    expect(mode in MODES, f"{HERE}: mode: expected one of {MODES}, got {mode!r}.")
    collated = multicrop_collator(batch)
    (views,), (labels,) = collated["data"], collated["label"]
    _check_fit(labels, len(batch), num_classes)
    of_rows = labels.ndim == 2
    how = (mixup_alpha, cutmix_alpha, minmax, prob, switch_prob, mode, correct_lam)
    mixup = _mixup(*how, *((0.0, len(batch)) if of_rows else (label_smoothing, num_classes)))
    mix = partial(_mix_rows, mixup, label_smoothing) if of_rows else mixup
    mixed = [mix(*each) for each in zip(views, labels.chunk(len(views)))]
    images, probabilities = [list(each) for each in zip(*mixed)]
    mixed_labels = torch.cat(probabilities)
    layout = f"{ssl_method}_collator"
    if layout != "moco_collator":
        data = torch.cat(images) if layout == "simclr_collator" else images
        return {**collated, "data": [data], "label": [mixed_labels]}
    expect(len(images) >= 2, f"{HERE}: ssl_method {ssl_method!r} needs two views of each image.")
    first = {key: [values[0][: len(batch)]] for key, values in collated.items() if key != "data"}
    views_of_pair = {"data": [images[0]], "data_momentum": [images[1]]}
    return {**first, **views_of_pair, "label": [probabilities[0]]}


@register_collator("multicrop_mixup_collator")
def multicrop_mixup_collator(batch: Sequence[Sample], beta: float = 0.2) -> Batch:
    """As multicrop_collator has them, of half as many images: each crop of the first is mixed
    with the second's, of the third with the fourth's, ...

    beta: the share of the first ones is drawn from the beta distribution of (beta, beta), once
        for the batch. Labels and numbers are those of the first ones.
    """
    where = "COLLATE_FUNCTION_PARAMS of multicrop_mixup_collator"
    expect(beta > 0, f"{where}: beta: expected more than 0, got {beta}.")
    _expect_pairs(where, len(batch))
    share = float(np.random.beta(beta, beta))  # noqa: NPY002
    collated = multicrop_collator(batch[::2])
    (first,), (second,) = collated["data"], multicrop_collator(batch[1::2])["data"]
    mixed = [share * one + (1 - share) * other for one, other in zip(first, second)]
    return {**collated, "data": [mixed]}


def _mix_rows(mixup: Mixup, smoothing: float, images: Tensor, rows: Tensor) -> tuple[Any, Any]:
    """Labels that are each image's number tell which share of the mixed ones is whose."""
    mixed, shares = mixup(images, torch.arange(len(images)))
    known, shares = rows >= 0, shares.to(torch.float32)
    smoothed = rows.clamp(min=0) * (1 - smoothing) + smoothing / rows.shape[1]
    unknown = shares @ (~known).to(torch.float32) > 0
    return mixed, (shares @ smoothed).masked_fill(unknown, -1.0)


@lru_cache(maxsize=8)
def _mixup(*arguments: Any) -> Mixup:
    return Mixup(*arguments)


def _check_fit(labels: Tensor, count: int, num_classes: int) -> None:
    _expect_pairs(HERE, count)
    if labels.ndim == 2:
        fits = not labels.is_floating_point() and labels.shape[1] == num_classes
    else:
        fits = labels.ndim == 1 and 0 <= int(labels.min()) <= int(labels.max()) < num_classes
    found = tuple(labels.shape[1:]) or int(labels.max())
    expect(
        fits,
        f"{HERE}: labels must be classes from 0 to num_classes - 1, {num_classes - 1}, or rows of "
        f"{num_classes} indicators; found {found}. If labels do not matter, set LABEL_TYPE: zero.",
    )


def _expect_pairs(where: str, count: int) -> None:
    expect(
        count % 2 == 0,
        f"{where}: images are mixed in pairs, and a batch has {count}. Set BATCHSIZE_PER_REPLICA "
        f"to an even number and DROP_LAST to true.",
    )
