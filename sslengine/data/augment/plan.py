"""A TRANSFORMS list as a plan: what is drawn now, what is done to pixels once and together.

The steps of a Pipeline stay, in their order, and each transform is replaced by one that takes
lazy views:

    Drawn       draws its numbers and adds operations to the view; no pixel is touched
    OnImages    a transform that the plan does not know: it gets the view as a PIL image, and
                what it returns is the source of a new view
    Pixels      ToTensor: the back-end makes the pixels

Where the list ends with ToTensor and Normalize, and its collator only moves images, these two
wait: they are done after collate (`Arrival`), and views leave the worker as uint8. Transforms that
only move pixels (`cut`), such as jigsaw's cutting into patches, may follow either of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from sslengine.data.augment.arrays import OnArrays, is_array
from sslengine.data.augment.arrival import Arrival
from sslengine.data.augment.backends.base import Backend
from sslengine.data.augment.drawing import draw_of
from sslengine.data.augment.finish import CONVERSIONS, CPU, Finish, can_be_put_off, is_uint8
from sslengine.data.augment.pipeline import Change, Pipeline, Step
from sslengine.data.augment.transform import (
    Sample,
    TakesAll,
    TakesLabels,
    Transform,
    kind_of,
    takes_bytes,
)
from sslengine.data.augment.view import View, as_view, size_of
from sslengine.data.decode.decoding import Decoder


class Plan:
    """`plan(sample)` is what the Pipeline makes of the sample."""

    def __init__(
        self,
        pipeline: Pipeline,
        backend: Backend,
        image_keys: Sequence[str] = (),
        limits: tuple[float, float] | None = None,
    ) -> None:
        """
        image_keys: of the batch, if its collator only moves images; else floats leave here.
        limits: of the values of images that are arrays of floats.
        """
        self.backend = backend
        self._keys = tuple(image_keys)
        self.cut = cut(pipeline.steps) if image_keys else Cut(pipeline.steps)
        self._finish = _finish_of(self.cut.waits) if self.cut.waits else None
        self.order = [step.where for step in pipeline.steps]
        self.steps = [
            *(planned(step, backend, OnArrays(limits)) for step in self.cut.on_views),
            _made_by(backend, self.cut.waits),
            *(_of_bytes(step) for step in self.cut.on_bytes),
        ]

    def read(self, encoded: bytes, decoder: Decoder) -> Any:
        """The image at the head of the list. What need not be RGB comes as the decoder has it."""
        if decoder.mode != "RGB":
            return decoder(encoded)
        return View.of(self.backend.decode(encoded, decoder))

    def __call__(self, sample: Sample) -> Sample:
        for step in self.steps:
            step(sample)
        return sample

    def settle(self, samples: Iterable[Sample]) -> None:
        """If a transform sometimes makes images that are not RGB, finish those of the batch that
        are: images of one batch are of one type."""
        if self._finish is None:
            return
        samples = list(samples)
        if all(is_uint8(image) for sample in samples for image in sample["data"]):
            return
        finish = self._finish.on(CPU)
        for sample in samples:
            sample["data"] = [finish(each) if is_uint8(each) else each for each in sample["data"]]

    def finished(self, sample: Sample) -> Sample:
        """A sample that goes into no batch, as it would have arrived."""
        arrival = self.arrival(CPU)
        if arrival is None:
            return sample
        key = self._keys[0]
        batch = {key: [image[None] for image in sample["data"]]}
        arrived = arrival.on_device(batch)[key]
        return {**sample, "data": [image[0] for image in arrived]}

    def arrival(self, device: torch.device) -> Arrival | None:
        """The rest of the work on a batch."""
        if self._finish is None:
            return None
        return Arrival(self._keys, self._finish.on(device))


class Cut(NamedTuple):
    """The steps of a list. Where nothing waits, all of them are in `on_views`."""

    on_views: Sequence[Step]
    waits: Sequence[Step] = ()  # ToTensor and Normalize
    on_bytes: Sequence[Step] = ()  # what moves pixels that ToTensor would have made floats of


def cut(steps: Sequence[Step]) -> Cut:
    """ToTensor waits, if what follows it is Normalize, only moves pixels or takes labels.

    What follows it and draws (such as a mask for a size) has no need of pixels, and still takes
    views. Otherwise the order stays.
    """
    first = _conversion_that_waits(steps)
    if first is None:
        return Cut(steps)
    waits = [step for step in steps[first:] if _converts(step) or _normalizes(step)]
    behind = [step for step in steps[first:] if step not in waits]
    on_views = list(takewhile(_needs_no_pixels, behind))
    return Cut([*steps[:first], *on_views], waits, behind[len(on_views) :])


def _conversion_that_waits(steps: Sequence[Step]) -> int | None:
    for number in reversed(range(len(steps))):
        step = steps[number]
        if _converts(step):
            return number
        if not may_follow(step):
            return None
    return None


def may_follow(step: Step) -> bool:
    """A ToTensor that waits."""
    return takes_labels(step) or _normalizes(step) or only_moves(step)


def takes_labels(step: Step) -> bool:
    return issubclass(step.kind, TakesLabels)


def only_moves(step: Step) -> bool:
    return takes_bytes(step.transform)


def _normalizes(step: Step) -> bool:
    return not step.indices and can_be_put_off(step.transform)


def _converts(step: Step) -> bool:
    return not step.indices and type(step.transform) in CONVERSIONS


def _needs_no_pixels(step: Step) -> bool:
    return takes_labels(step) or draw_of(step.transform) is not None


def _finish_of(waits: Sequence[Step]) -> Finish:
    conversion, *normalizations = (step.transform for step in waits)
    return Finish(conversion, normalizations)  # type: ignore[arg-type]


def _made_by(backend: Backend, waits: Sequence[Step]) -> Step:
    """No view goes further than this step."""
    if waits:
        return Step(waits[0].where, Parcel(waits, backend), ())
    return Step("the end of the TRANSFORMS", Rendered(backend), ())


def _of_bytes(step: Step) -> Step:
    if takes_labels(step):
        return step
    return replace(step, transform=step.transform.on_bytes)  # type: ignore[attr-defined]


# ---- transforms of views


def planned(step: Step, backend: Backend, on_arrays: OnArrays) -> Step:
    """The step with its transform replaced by one that takes views."""
    if takes_labels(step):
        return step
    draw = draw_of(step.transform)
    transform: Change
    if type(step.transform) in CONVERSIONS:
        transform = Pixels(step.transform, backend)
    elif draw is None:
        transform = OnImages(step.transform, backend)
    elif issubclass(step.kind, TakesAll):
        transform = DrawnForAll(step.transform, draw, backend, on_arrays)
    else:
        transform = Drawn(step.transform, draw, backend, on_arrays)
    return replace(step, transform=transform)


class OnImages:
    """A transform that gets images. Also the base of those that know of views."""

    def __init__(self, transform: Change, backend: Backend) -> None:
        self.transform, self.backend = transform, backend
        self.kind: type[Transform] = kind_of(transform)

    def __call__(self, image: Any) -> Any:
        return self.transform(self.visible(image))

    def visible(self, image: Any) -> Any:
        """A view, or each of a list of views, as the PIL image that it describes."""
        if isinstance(image, list):
            return [self.visible(each) for each in image]
        return self.backend.image(image.source, image.ops) if isinstance(image, View) else image


class Drawn(OnImages):
    """A transform that says what it draws, for each image."""

    def __init__(self, transform: Change, draw: Any, backend: Backend, on_arrays: OnArrays) -> None:
        super().__init__(transform, backend)
        self.draw, self.on_arrays = draw, on_arrays

    def __call__(self, image: Any) -> Any:
        if is_array(image):
            return self.of_arrays(View.of(image), self.draw(size_of(image)))
        view = image if type(image) is View else as_view(image)
        if view is None:
            return self.transform(self.visible(image))
        return self.kind.lazily(view, self.draw(view.size), self.backend.rendered)

    def of_arrays(self, views: Any, drawn: Any) -> Any:
        return self.made(self.kind.lazily(views, drawn, self.on_arrays))

    def made(self, result: Any) -> Any:
        """With arrays in the place of views of arrays, which are not made together."""
        if isinstance(result, View):
            return self.on_arrays(result.source, result.ops)
        if isinstance(result, dict):
            return {key: self.made(value) for key, value in result.items()}
        if isinstance(result, (list, tuple)):
            return type(result)(self.made(each) for each in result)
        return result


class DrawnForAll(Drawn):
    """The same, for all images at once."""

    def __call__(self, images: Any) -> Any:
        if all(is_array(image) for image in images):
            sizes = [size_of(image) for image in images]
            return self.of_arrays([View.of(image) for image in images], self.draw(sizes))
        views = [as_view(image) for image in images]
        if not all(views):
            return self.transform(self.visible(images))
        drawn = self.draw([view.size for view in views if view])
        return self.kind.lazily(views, drawn, self.backend.rendered)  # type: ignore[arg-type]


class Pixels(OnImages):
    """A conversion to a float tensor, in its place in the list."""

    def __init__(self, transform: Change, backend: Backend) -> None:
        super().__init__(transform, backend)
        self.finish = Finish(transform)

    def __call__(self, image: Any) -> Any:
        view = as_view(image)
        if view is None:
            return self.transform(image)
        return self.finish.on(CPU)(self.backend.tensor(view.source, view.ops))


class Rendered:
    """Where a list ends that has no ToTensor to wait."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(self, image: Any) -> Any:
        return self.backend.image(image.source, image.ops) if isinstance(image, View) else image


class Parcel:
    """In place of ToTensor and Normalize: uint8. Images that are not RGB are converted at once."""

    def __init__(self, waits: Sequence[Step], backend: Backend) -> None:
        self.waits = [step.transform for step in waits]
        self.backend = backend

    def __call__(self, image: Any) -> Any:
        view = as_view(image)
        if view is not None:
            return self.backend.tensor(view.source, view.ops)
        for transform in self.waits:
            image = transform(image)
        return image
