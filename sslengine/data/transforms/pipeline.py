"""The TRANSFORMS list of a split, applied to a sample as VISSL does.

Each transform takes one image and is applied to every image in sample["data"], or to
those that its `indices` name. What it returns takes the image's place; a dictionary also
adds to the sample what it holds beside "data". A transform class may say that it differs:

    makes_views = True     it returns several images, which all stay images of the
                           sample; label, data_idx and data_valid go with each of them
    makes_label = True     it returns (image, label)
    makes_keys = True      it always returns a dictionary
    takes_all = True       it takes the list of all images and returns such a list
    takes_labels = True    it takes a label, each in turn, and returns what stands for it
    only_moves = True      of a tensor it returns values as they are, wherever it puts them, or the
                           tensor itself; which, does not depend on the values
    count_views(**arguments) -> int      (static) how many views it makes of an image
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.registry import TRANSFORMS

Sample = dict[str, list[Any]]
Transform = Callable[[Any], Any]
FOLLOW_THE_IMAGE = ("data_valid", "data_idx", "label")


class Pipeline:
    """All the transforms of a split, in order."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], where: str) -> None:
        self.steps = [
            Step(
                f"{where}.{number} ({entry['name']})",
                build_transform(entry, f"{where}.{number}"),
                _indices(entry, f"{where}.{number}"),
            )
            for number, entry in enumerate(entries)
        ]

    def __call__(self, sample: Sample) -> Sample:
        for step in self.steps:
            step(sample)
        return sample


def build_transform(entry: Mapping[str, Any], where: str) -> Transform:
    """The transform that one entry of a TRANSFORMS list names.

    Entries in an argument of its own (`RandomApply`: `transforms: [...]`) are built too.
    """
    arguments = {
        key: _build_nested(value, f"{where}.{key}")
        for key, value in entry.items()
        if key not in TRANSFORMS.entry_keys
    }
    try:
        transform: Transform = TRANSFORMS.get(TRANSFORMS.name_in(entry, where), where)(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} ({entry['name']}): {error}") from error
    return transform


def _build_nested(value: Any, where: str) -> Any:
    nested = isinstance(value, list) and any(isinstance(e, Mapping) and "name" in e for e in value)
    if not nested:
        return value
    return [build_transform(entry, f"{where}.{number}") for number, entry in enumerate(value)]


def _indices(entry: Mapping[str, Any], where: str) -> tuple[int, ...]:
    indices = entry.get("indices", [])
    if not isinstance(indices, list) or not all(isinstance(index, int) for index in indices):
        raise ConfigError(f"{where}.indices: expected a list of numbers, got {indices!r}.")
    return tuple(indices)


@dataclass(frozen=True)
class Step:
    """One transform and where it applies."""

    where: str
    transform: Transform
    indices: tuple[int, ...]  # none: every image

    def __call__(self, sample: Sample) -> None:
        try:
            self._apply(sample)
        except SSLEngineError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.where} failed on sample {sample['data_idx'][0]}: "
                f"{type(error).__name__}: {error}{_why_not_pil(sample['data'])}"
            ) from error

    def _apply(self, sample: Sample) -> None:
        if getattr(self.transform, "takes_all", False):
            sample["data"] = list(self.transform(sample["data"]))
            return
        if getattr(self.transform, "takes_labels", False):
            sample["label"] = [self.transform(label) for label in sample["label"]]
            return
        indices = self.indices or range(len(sample["data"]))
        outputs = {index: self.transform(sample["data"][index]) for index in indices}
        if getattr(self.transform, "makes_views", False):
            _put_views(sample, outputs)
            return
        makes_label = getattr(self.transform, "makes_label", False)
        for index, output in outputs.items():
            if makes_label:
                output, sample["label"][index] = output
            elif isinstance(output, dict):
                for key, value in output.items():
                    if key != "data":
                        sample.setdefault(key, []).append(value)
                output = output["data"]
            sample["data"][index] = output


def _why_not_pil(images: Sequence[Any]) -> str:
    if any(isinstance(image, Tensor) for image in images):
        return (
            "\n  Images are tensors here, after ToTensor: it takes transforms of tensors, such as "
            "torchvision's."
        )
    if not any(isinstance(image, np.ndarray) for image in images):
        return ""
    return (
        "\n  Images are arrays here, height x width x channels (IMAGE_MODE: stored). Put ToTensor "
        "first, and after it transforms that take tensors, such as torchvision's."
    )


def _put_views(sample: Sample, views: Mapping[int, Sequence[Any]]) -> None:
    """Each image's views in its place, and beside each view what belongs to its image."""
    lists = [views.get(index, [image]) for index, image in enumerate(sample["data"])]
    for key in FOLLOW_THE_IMAGE:
        sample[key] = [value for value, each in zip(sample[key], lists, strict=True) for _ in each]
    sample["data"] = [view for each in lists for view in each]
