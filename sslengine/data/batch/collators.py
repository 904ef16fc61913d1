"""From samples to a batch: `collate(batch) -> {key: [tensor, ...]}`.

The standard train step takes one thing under each key, so a collator makes one of what
the views of a sample hold: a tensor, or where views differ in size a list of tensors.
All keys of a sample are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate as stack_in_shared_memory

from sslengine.data.augment.transform import Sample
from sslengine.data.manifest.index import make_numbers
from sslengine.errors import DataError
from sslengine.registry import register_collator

# Where a sample has its fields (DATA.TRAIN.FIELDS), and a batch their names.
FIELDS = "fields"
# Under each key a list over data sources, of tensors or of lists of tensors.
Batch = dict[str, list[Any]]

C = TypeVar("C", bound=Callable[..., Any])


def only_moves(*keys: str) -> Callable[[C], C]:
    """Mark a collator that stacks and sorts images without a look at their values. Then they may
    come as uint8, and become floats on the device. keys: under which they are afterwards."""

    def mark(collate: C) -> C:
        collate.image_keys = keys  # type: ignore[attr-defined]
        return collate

    return mark


def image_keys(collate: Callable[..., Any]) -> tuple[str, ...]:
    """Return the keys that hold images; none if the collator does not say that it only moves
    them."""
    keys: tuple[str, ...] = getattr(collate, "image_keys", ())
    return keys


@register_collator("default_collate")
@only_moves("data")
def default_collate(batch: Sequence[Sample]) -> Batch:
    """One tensor for each image of a sample."""
    return {key: [stacked(key, values) for values in zip(*column(batch, key))] for key in batch[0]}


@register_collator("simclr_collator")
@only_moves("data")
def simclr_collator(batch: Sequence[Sample]) -> Batch:
    """One tensor: the first view of every sample, then the second view of every sample, ..."""
    return {key: [view_by_view(batch, key)] for key in batch[0]}


@register_collator("multicrop_collator")
@only_moves("data")
def multicrop_collator(batch: Sequence[Sample]) -> Batch:
    """`data`: a list of tensors, the first crop of every sample, then the second of every sample.

    The rest is one tensor each, in the order of the crops.
    """
    crops = [stacked("data", values) for values in zip(*column(batch, "data"))]
    rest = {key: [view_by_view(batch, key)] for key in batch[0] if key != "data"}
    return {"data": [crops], **rest}


@register_collator("moco_collator")
@only_moves("data", "data_momentum")
def moco_collator(batch: Sequence[Sample]) -> Batch:
    """`data`, the first view of every sample, and `data_momentum`, the second; no other views."""
    data = column(batch, "data")
    expect(
        len(data[0]) >= 2,
        "moco_collator needs two views of each image: put ImgReplicatePil with num_times 2 among "
        "the TRANSFORMS.",
    )
    views = [[stacked("data", [images[number] for images in data])] for number in range(2)]
    return {"data": views[0], "data_momentum": views[1], **_first_views(batch)}


@register_collator("siamese_collator")
@only_moves("data")
def siamese_collator(batch: Sequence[Sample]) -> Batch:
    """One tensor of patches for each image of a sample: all of the first sample, of the second, ...

    An image is a tensor of its patches here, as ImgPatchesFromTensor makes it.
    """
    collated = default_collate(batch)
    for images in collated["data"]:
        expect(
            images.ndim == 5,
            f"siamese_collator takes a tensor patches x channels x height x width of each image, "
            f"and got {tuple(images.shape[1:])}: put ImgPatchesFromTensor among the TRANSFORMS, "
            f"after ToTensor.",
        )
    return {**collated, "data": [images.flatten(0, 1) for images in collated["data"]]}


@register_collator("patch_and_image_collator")
@only_moves("images", "patches")
def patch_and_image_collator(batch: Sequence[Sample]) -> Batch:
    """`images`, and `patches`: all of the first sample, all of the second, ..."""
    expect(
        len(batch[0]["data"]) >= 2,
        "patch_and_image_collator found no patches: put ImgPilToPatchesAndImage among the "
        "TRANSFORMS.",
    )
    data = column(batch, "data")
    collated = {
        "images": [stacked("images", [images[0] for images in data])],
        "patches": [stacked("patches", [patch for images in data for patch in images[1:]])],
    }
    return {**collated, **_first_views(batch)}


@register_collator("identity_collator")
def identity_collator(batch: Sequence[Sample]) -> list[Sample]:
    """The samples without collation, for a train step that reads them."""
    return list(batch)


@register_collator("targets_one_hot_default_collator")
@only_moves("data")
def targets_one_hot_default_collator(batch: Sequence[Sample], num_classes: int) -> Batch:
    """A label is two lists, of classes that an image shows and of those that it does not; in the
    batch it is a vector: 1 for the first, 0 for the second, and -1 for all others.

    num_classes: the length of the vector.
    """
    vectors = [{**sample, "label": [_vector(sample["label"], num_classes)]} for sample in batch]
    collated: Batch = default_collate(vectors)
    return collated


def _vector(labels: Sequence[object], num_classes: int) -> Tensor:
    match labels:
        case [[list() as present, list() as absent]] if all(
            0 <= each < num_classes for each in (*present, *absent)
        ):
            vector = torch.full((num_classes,), -1)
            vector[present], vector[absent] = 1, 0
            return vector
    raise DataError(
        f"targets_one_hot_default_collator takes one image a sample, with a label of two lists, of "
        f"classes that it shows and that it does not, from 0 to num_classes - 1, "
        f"{num_classes - 1}; got {labels}."
    )


# ---- images of a batch mixed with each other
#
# In `cutmixup_collator` their labels as well. Mixup and CutMix are timm's there; each image is
# mixed with the one at the same place from the end.


@register_collator("cutmixup_collator")
def cutmixup_collator(
    batch: Sequence[Sample],
    ssl_method: str | None = None,
    mixup_alpha: float = 1.0,
    cutmix_alpha: float = 0.0,
    cutmix_minmax: list[float] | None = None,
    prob: float = 1.0,
    switch_prob: float = 0.5,
    mode: Literal["batch", "pair", "elem"] = "batch",
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
    minmax = None if cutmix_minmax is None else tuple(cutmix_minmax)
    mixes = mixup_alpha > 0 or cutmix_alpha > 0 or minmax is not None
    expect(mixes, "cutmixup_collator: set one of mixup_alpha, cutmix_alpha and cutmix_minmax.")
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
    expect(len(images) >= 2, f"cutmixup_collator: {ssl_method!r} needs two views of each image.")
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
    _expect_pairs("multicrop_mixup_collator", len(batch))
    share = float(np.random.beta(beta, beta))  # noqa: NPY002
    collated = multicrop_collator(batch[::2])
    (first,), (second,) = collated["data"], multicrop_collator(batch[1::2])["data"]
    mixed = [share * one + (1 - share) * other for one, other in zip(first, second)]
    return {**collated, "data": [mixed]}


def _mix_rows(mixup: Any, smoothing: float, images: Tensor, rows: Tensor) -> tuple[Any, Any]:
    """Labels that are each image's number tell which share of the mixed ones is whose."""
    mixed, shares = mixup(images, torch.arange(len(images)))
    known, shares = rows >= 0, shares.to(torch.float32)
    smoothed = rows.clamp(min=0) * (1 - smoothing) + smoothing / rows.shape[1]
    unknown = shares @ (~known).to(torch.float32) > 0
    return mixed, (shares @ smoothed).masked_fill(unknown, -1.0)


@lru_cache(maxsize=8)
def _mixup(*arguments: Any) -> Any:
    from timm.data.mixup import Mixup  # takes seconds, and other collators need none of it

    return Mixup(*arguments)


def _check_fit(labels: Tensor, count: int, num_classes: Any) -> None:
    _expect_pairs("cutmixup_collator", count)
    if labels.ndim == 2:
        fits = not labels.is_floating_point() and labels.shape[1] == num_classes
    else:
        fits = labels.ndim == 1 and 0 <= int(labels.min()) <= int(labels.max()) < num_classes
    found = tuple(labels.shape[1:]) or int(labels.max())
    expect(
        fits,
        f"cutmixup_collator: labels must be classes from 0 to {num_classes - 1}, or rows of "
        f"{num_classes} indicators; found {found}. If labels do not matter, set LABEL_TYPE: zero.",
    )


def _expect_pairs(name: str, count: int) -> None:
    expect(
        count % 2 == 0,
        f"{name}: images are mixed in pairs, and a batch has {count}. Set BATCHSIZE_PER_REPLICA "
        f"to an even number and DROP_LAST to true.",
    )


# ---- what collators and the loader need


def add_fields(batch: Batch, fields: Sequence[dict[str, Any]]) -> None:
    """Add the fields of the samples: an entry an image, numbers and arrays as a tensor."""
    for name in fields[0]:
        if name in {*batch, "input", "target"}:
            raise DataError(
                f"config.DATA.TRAIN.FIELDS: the batch has another {name!r}; expected a field of "
                f"another name."
            )
        values = [make_numbers(each[name]) for each in fields]
        if isinstance(values[0], (np.ndarray, np.generic, Tensor)):
            # Copies: what ranks and workers share cannot be written to.
            batch[name] = [stacked(name, [torch.from_numpy(np.array(each)) for each in values])]
        else:
            batch[name] = [values]
    if fields[0]:
        batch[FIELDS] = [tuple(fields[0])]


def _first_views(batch: Sequence[Sample]) -> Batch:
    """Return the values of the first view of each sample, except the images."""
    return {
        key: [stacked(key, [values[0] for values in column(batch, key)])]
        for key in batch[0]
        if key != "data"
    }


def expect(met: bool, otherwise: str) -> None:
    """Raise DataError with these words unless a condition is met."""
    if not met:
        raise DataError(otherwise)


def view_by_view(batch: Sequence[Sample], key: str) -> Tensor:
    return stacked(key, [view for views in zip(*column(batch, key)) for view in views])


def column(batch: Sequence[Sample], key: str) -> list[list[Any]]:
    return [sample[key] for sample in batch]


def stacked(key: str, values: Sequence[Any]) -> Tensor:
    """Stack numbers or tensors to a tensor that a loader worker hands over without a copy."""
    first = values[0]
    if isinstance(first, Tensor):
        odd = next((each for each in values if each.shape != first.shape), None)
        if odd is not None:
            raise DataError(
                f"A batch cannot hold {key!r} of different sizes, {tuple(first.shape)} and "
                f"{tuple(odd.shape)}. Let the TRANSFORMS bring all images to one size, "
                f"for example with RandomResizedCrop, or Resize and CenterCrop."
            )
    elif not isinstance(first, (int, float, np.generic, np.ndarray)):
        raise DataError(
            f"A batch is made of tensors, and {key!r} is a {type(first).__name__}. "
            f"Put ToTensor after the transforms that work on images."
        )
    together: Tensor = stack_in_shared_memory(list(values))
    return together
