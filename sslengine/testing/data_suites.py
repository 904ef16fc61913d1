"""Promises of the components that make samples and batches: sources, transforms, collators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torch import Tensor

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.batch.collators import image_keys
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, SplitOptions, split_options
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.data.sources.base import build_sources
from sslengine.registry import COLLATORS
from sslengine.testing.promises import Suite, expect, names, promise
from sslengine.testing.state import copied, differences, flat

SEED, SIDE, IMAGES = 3, 32, 8
TO_TENSOR = {"name": "ToTensor"}
Entry = Mapping[str, Any]


def pixels(number: int) -> Image.Image:
    """Draw an image that is different for each number."""
    draw = np.random.default_rng(number)
    return Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


class DataSuite(Suite):
    """before: entries of TRANSFORMS that run first."""

    own: ClassVar[tuple[str, ...]] = ("before",)
    before: Sequence[Entry] = ()

    def keys(self) -> dict[str, Any]:
        """Choose config.DATA.TRAIN."""
        return {
            "DATA_SOURCES": ["synthetic"],
            "RANDOM_SYNTHETIC_IMAGES": True,
            "RANDOM_SYNTHETIC_LABELS": 4,
            "LABEL_SOURCES": ["synthetic"],
            "DEFAULT_GRAY_IMG_SIZE": SIDE,
            "DATA_LIMIT": IMAGES,
            "BATCHSIZE_PER_REPLICA": 4,
            "TRANSFORMS": [TO_TENSOR],
        }

    def split(self) -> SplitOptions:
        return split_options(**self.keys())

    def batches(self, workers: int = 0, first: int = 0, **changes: Any) -> list[dict[str, Any]]:
        """Read the batches of an epoch, as the task does, from batch number `first`."""
        split = replace(self.split(), **changes)
        options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=workers)
        feed = DataFeed(options, "TRAIN", training=True, seed=SEED)
        try:
            return [flat(batch) for batch in feed.batches(1, first)]
        finally:
            feed.close()

    def expect_same(self, one: Sequence[Any], other: Sequence[Any], what: str) -> None:
        expect(bool(one) and len(one) == len(other), f"{what} the batches differ")
        differs = {key for pair in zip(one, other, strict=True) for key in differences(*pair)}
        expect(not differs, f"{what} the values of {names(sorted(differs))} differ")

    @promise()
    def resumes_within_an_epoch(self) -> None:
        """A run that resumes within an epoch gets the same batches as one that was not stopped."""
        self.expect_same(self.batches()[1:], self.batches(first=1), "from the second batch on")

    @promise()
    def does_not_depend_on_workers(self) -> None:
        """Batches do not depend on which processes make them."""
        self.expect_same(self.batches(), self.batches(workers=1), "in a loader worker")


class TransformSuite(DataSuite):
    """arguments: those of its entry in TRANSFORMS."""

    kind = "transform"

    @cached_property
    def entry(self) -> dict[str, Any]:
        return {"name": self.component, **self.arguments}

    def keys(self) -> dict[str, Any]:
        listed = [*self.before, self.entry]
        return {**super().keys(), "COLLATE_FUNCTION": "identity_collator", "TRANSFORMS": listed}

    @cached_property
    def pipeline(self) -> Pipeline:
        return Pipeline([*self.before, self.entry], "config.DATA.TRAIN.TRANSFORMS")

    def sample(self, number: int = 0) -> dict[str, list[Any]]:
        return {"data": [pixels(number)], "data_valid": [1], "data_idx": [number], "label": [1]}

    def made(self, pipeline: Pipeline, number: int = 0) -> dict[str, Any]:
        with streams_kept():
            seed_sample(SEED, (0, number))
            return copied(_readable(pipeline(self.sample(number))))

    @promise()
    def does_not_change_its_input(self) -> None:
        """It does not write into its input, which may belong to the source or to another view."""
        *before, step = self.pipeline.named
        with streams_kept():
            seed_sample(SEED, (0, 0))
            sample = self.sample()
            for each in before:
                each(sample)
            given = {key: list(values) for key, values in sample.items()}
            kept = copied(_readable(given))
            step(sample)
        differs = differences(kept, copied(_readable(given)))
        expect(not differs, f"it has changed its input: {names(differs)}")

    @promise()
    def makes_the_declared_number_of_views(self) -> None:
        """`count_views` is the number of images of a sample, each with a label and an index."""
        made = self.pipeline(self.sample())
        transform = self.pipeline.named[-1].transform
        lengths = {key: len(made[key]) for key in ("data", "data_valid", "data_idx", "label")}
        expect(len({*lengths.values()}) == 1, f"the counts are not equal: {lengths}")
        patches = type(transform).__name__ == "ImgPilToPatchesAndImage"  # and an image
        if hasattr(transform, "count_views") and not patches:
            declared, found = transform.count_views(**self.arguments), len(made["data"])
            expect(declared == found, f"{found} views, not {declared}")


class CollatorSuite(DataSuite):
    """arguments: config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS. before: the TRANSFORMS. label: that
    of every sample, if the collator does not accept class numbers."""

    kind, own = "collator", ("before", "label")
    label: Any = None

    def keys(self) -> dict[str, Any]:
        return {
            **super().keys(),
            "COLLATE_FUNCTION": self.component,
            "COLLATE_FUNCTION_PARAMS": self.arguments,
            "TRANSFORMS": [*self.before] or [TO_TENSOR],
        }

    def samples(self) -> list[dict[str, list[Any]]]:
        pipeline = Pipeline(self.split().TRANSFORMS, "config.DATA.TRAIN.TRANSFORMS")
        with streams_kept():
            seed_sample(SEED, (0, 0))
            return [pipeline(self.sample(number)) for number in range(4)]

    def sample(self, number: int) -> dict[str, list[Any]]:
        label = number % 4 if self.label is None else self.label
        return {"data": [pixels(number)], "data_valid": [1], "data_idx": [number], "label": [label]}

    def collate(self, samples: Any) -> Any:
        with streams_kept():
            seed_sample(SEED, (0, 0))
            return COLLATORS.make(self.component, self.arguments, "", samples)

    @promise()
    def keeps_each_sample(self) -> None:
        """The batch has all samples in their order, each image with its other fields."""
        batch, wanted = self.collate(self.samples()), list(range(4))
        if isinstance(batch, list):
            found = [each["data_idx"][0] for each in batch]
        else:
            expect("data_idx" in batch, "the batch has lost data_idx")
            found = [int(each) for each in batch["data_idx"][0].flatten().tolist()]
        order = list(dict.fromkeys(found))
        expect(order == wanted, f"it has the samples {order}, and not {wanted}")
        counts = {found.count(each) for each in wanted}
        expect(len(counts) == 1, f"some samples occur more often: {found}")

    @promise()
    def keeps_pixels_if_declared(self) -> None:
        """If it is marked `only_moves`, the batch has each image once, with equal pixels."""
        keys = image_keys(COLLATORS.get(self.component))
        if not keys:
            return
        samples = self.samples()
        batch = self.collate(samples)
        given = _digests([sample["data"] for sample in samples])
        found = _digests([batch.get(key, []) for key in keys])
        moved = bool(found) and {*found} <= {*given}
        expect(moved, "it changes pixels, although it is marked `only_moves`")
        twice = len(found) > len(set(found))
        expect(not twice, "some images are in the batch more than once")


class SourceSuite(DataSuite):
    """arguments: keys of config.DATA.TRAIN, such as DATA_PATHS."""

    kind = "source"

    def keys(self) -> dict[str, Any]:
        ours = {"DATA_SOURCES": [self.component], "LABEL_TYPE": "sample_index"}
        generated = {"DEFAULT_GRAY_IMG_SIZE": SIDE, "BATCHSIZE_PER_REPLICA": 4}
        resize = [{"name": "Resize", "size": [SIDE, SIDE]}, TO_TENSOR]
        return {**ours, **generated, "TRANSFORMS": resize, **self.arguments}

    @cached_property
    def source(self) -> Any:
        return build_sources(self.split(), "TRAIN")[0]

    def batches(self, workers: int = 0, first: int = 0, **changes: Any) -> list[dict[str, Any]]:
        return super().batches(workers, first, DATA_LIMIT=min(len(self.source), IMAGES), **changes)

    @promise()
    def has_an_image_for_each_index(self) -> None:
        """Each index from 0 to length - 1 has an image and a name."""
        length = len(self.source)
        expect(length > 0, "it is empty")
        for index in (0, length // 2, length - 1):
            expect(self.source.image(index) is not None, f"image {index} is None")
            expect(bool(str(self.source.path(index))), f"image {index} has no name")

    @promise()
    def returns_the_same_image_each_time(self) -> None:
        """Also after other images are read, and after its output is modified."""
        first = np.array(self.source.image(0))
        given = self.source.image(0)
        self.source.image(len(self.source) - 1)
        if isinstance(given, Image.Image):
            given.paste(0, (0, 0, *given.size))
        else:
            np.asarray(given)[...] = 0
        again = np.array(self.source.image(0))
        expect(np.array_equal(first, again), "image 0 differs when read again")

    @promise()
    def has_a_label_for_each_image(self) -> None:
        """If it has labels, there is one for each image, and `label` agrees with `labels`."""
        if not self.source.num_classes:
            return
        labels = self.source.labels()
        length = len(self.source)
        expect(len(labels) == length, f"{len(labels)} labels for {length} images")
        for index in (0, length - 1):
            one, other = int(self.source.label(index)), int(labels[index])
            expect(one == other, f"label({index}) is {one}, labels() has {other}")

    @promise()
    def knows_its_files(self) -> None:
        """The files that it names are there: kept features depend on their sizes and times."""
        some = np.array([0, len(self.source) // 2, len(self.source) - 1])
        files = list(self.source.files_of(some) or ())
        missing = [file for file in files if not os.path.isfile(file)]
        expect(not missing, f"files_of names {names(missing)}, which is no file")


def _readable(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Turn images into arrays."""
    return {
        key: [np.array(each) if isinstance(each, Image.Image) else each for each in values]
        for key, values in sample.items()
    }


def _digests(value: Any) -> list[bytes]:
    """Return the bytes of each image in nested lists of images and of batches of them."""
    if isinstance(value, Tensor) and value.ndim == 3:
        return [value.contiguous().numpy().tobytes()]
    return [digest for each in value for digest in _digests(each)]
