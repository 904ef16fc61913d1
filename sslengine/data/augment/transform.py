"""What a transform is: an entry of a TRANSFORMS list.

A class with `__call__` is enough, and needs no base: it takes an image and returns one. It gets a
copy as a PIL image. One that says `takes_arrays` gets images of any kind (see image.py), and hands
them to the functions of geometry.py, colour.py, levels.py, blur.py and noise.py:

    class SometimesInvert(Transform):
        takes_arrays = True

        def __call__(self, image):
            return invert(image, self.limits) if torch.rand(1) < 0.5 else image

All draws come from the global streams of Python, numpy and torch, which are seeded for each sample.
Transforms that do something else than make one image of one derive from one of the other classes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment.image import NO_LIMITS, Limits, Rgb, is_image, make_pil, make_rgb

Change = Callable[[Any], Any]

Sample = dict[str, list[Any]]
FOLLOW_THE_IMAGE = ("data_valid", "data_idx", "label")


class Transform:
    # Is it not to be made just to look?
    takes_long_to_make: ClassVar[bool] = False
    # Does `__call__`, defined in the same class, take images of any kind? Pixels that it changes in
    # place are those of its `own` image.
    takes_arrays: ClassVar[bool] = False
    # Of the values of arrays of floats; set where a list is built, also in what this one applies.
    limits: Limits = NO_LIMITS

    def on_bytes(self, pixels: Tensor) -> Any:
        """Return what a call makes of a tensor, of one that is still uint8. For a transform that
        returns its values unchanged, anywhere in the sample: so ToTensor, which it follows, can
        wait."""
        raise NotImplementedError

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        """Pass a sample through it. change: the transform, or what runs in its place."""
        images = sample["data"]
        for index in indices or range(len(images)):
            made = change(images[index])
            if isinstance(made, dict):
                for key, value in made.items():
                    if key != "data":
                        sample.setdefault(key, []).append(value)
                made = made["data"]
            images[index] = made


class MakesKeys(Transform):
    """Returns a dictionary: the image under "data", and what else the sample is to have. (Any
    transform may return one; this one does so always.)"""


class MakesViews(Transform):
    """Returns several images, which all stay images of the sample; label, data_idx and data_valid
    go with each of them."""

    @staticmethod
    def count_views(*_: Any, **arguments: Any) -> int:
        """Return how many views of an image it makes, with these arguments."""
        return 1

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        images = sample["data"]
        chosen = indices or range(len(images))
        lists = [change(each) if n in chosen else [each] for n, each in enumerate(images)]
        for key in FOLLOW_THE_IMAGE:
            pairs = zip(sample[key], lists, strict=True)
            sample[key] = [value for value, each in pairs for _ in each]
        sample["data"] = [view for each in lists for view in each]


class MakesLabel(Transform):
    """Returns an image and its label."""

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        images = sample["data"]
        for index in indices or range(len(images)):
            images[index], sample["label"][index] = change(images[index])


class TakesAll(Transform):
    """Takes the list of all images and returns such a list."""

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        sample["data"] = list(change(sample["data"]))


class TakesLabels(Transform):
    """Takes one label and returns the new one."""

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        sample["label"] = [change(label) for label in sample["label"]]


# ---- what runs in the place of a transform


class Counterpart(Transform):
    """Runs in the place of a transform of torchvision: the same draws and the same pixels, of
    images of any kind. What is no image, such as a tensor, goes to the transform itself."""

    takes_arrays = True
    change: Change

    def __init__(self, named: Change) -> None:
        self.named = named

    def __call__(self, image: Any) -> Any:
        known = type(image) is Rgb or is_image(image)
        return self.change(image) if known else self.named(image)


class Sometimes(Counterpart):
    """One operation, with probability p; always where p is None. limited: it takes `limits`."""

    def __init__(
        self, named: Change, p: float | None, operation: Callable[..., Any], limited: bool = False
    ) -> None:
        super().__init__(named)
        self.p, self.operation, self.limited = p, operation, limited

    def change(self, image: Any) -> Any:
        if self.p is not None and uniform() >= self.p:
            return image
        return self.operation(image, limits=self.limits) if self.limited else self.operation(image)


class InTurn(Transform):
    """All transforms one after another; where p is given, with that probability, or none."""

    takes_arrays = True

    def __init__(self, transforms: Sequence[Change], p: float | None = None) -> None:
        self.transforms = list(transforms)
        self.p = None if p is None else round_p(probability(p))

    def __call__(self, image: Any) -> Any:
        return image if self.p is not None and self.p < uniform() else self.change(image)

    def change(self, image: Any) -> Any:
        for each in self.transforms:
            image = each(image)
        return image


class OnPil(Transform):
    """Gives a transform PIL images that it may draw into, and takes back what came as arrays."""

    takes_arrays = True

    def __init__(self, named: Change) -> None:
        self.named = named

    def __call__(self, image: Any) -> Any:
        """image: or the list of all of the sample."""
        made = self.named(_change_images(_make_own_pil, image))
        images = image if isinstance(image, list) else [image]
        if any(type(each) is Rgb for each in images):
            return _change_images(make_rgb, made)
        return made


def _change_images(change: Change, made: Any) -> Any:
    if isinstance(made, dict):
        return {**made, "data": change(made["data"])}
    if isinstance(made, (list, tuple)):
        return type(made)([change(each) for each in made])
    return change(made)


def _make_own_pil(image: Any) -> Any:
    if type(image) is Rgb:
        return make_pil(image)
    return image.copy() if isinstance(image, Image.Image) else image


def unwrap(transform: Any) -> Any:
    """Return the transform that the list names, of what runs in its place."""
    return transform.named if isinstance(transform, (Counterpart, OnPil)) else transform


def walk(transform: Any) -> Iterator[Transform]:
    """Yield it, and the transforms that it applies, which its attributes hold."""
    if isinstance(transform, Transform):
        yield transform
        for value in vars(transform).values():
            for each in value if isinstance(value, (list, tuple)) else [value]:
                yield from walk(each)


def kind_of(transform: Any) -> type[Transform]:
    """Return its kind; of a class without our base: one image to one."""
    named = unwrap(transform)
    return type(named) if isinstance(named, Transform) else Transform


def takes_arrays(transform: Any) -> bool:
    """Does the class that defines its `__call__` say so? What a subclass changes is not known."""
    classes = type(transform).__mro__
    definer = next((each for each in classes if "__call__" in vars(each)), object)
    return vars(definer).get("takes_arrays") is True


# ---- single numbers from torch's global stream, as torchvision draws them
#
# torchvision makes a tensor for each, which takes as long as to draw it. Here one tensor is drawn
# into again and again. Each docstring has the call that the function replaces.


class _Cells(threading.local):
    """What is drawn into; each thread has its own, for torch draws without Python's lock."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # made within it, they could be used nowhere else
            self.real = torch.empty(1, dtype=torch.float32, device="cpu")
            self.whole = torch.empty(1, dtype=torch.int64, device="cpu")
        # numpy reads in a fifth of the time that torch takes.
        self.read_real: Callable[[], float] = self.real.numpy().item
        self.read_whole: Callable[[], int] = self.whole.numpy().item


_cells = _Cells()


def uniform(low: float = 0.0, high: float = 1.0) -> float:
    """torch.empty(1).uniform_(low, high).item(); by default torch.rand(1).item()"""
    _cells.real.uniform_(low, high)
    return _cells.read_real()


def exp_of_uniform(low: float, high: float) -> float:
    """torch.empty(1).uniform_(low, high).exp().item()"""
    _cells.real.uniform_(low, high).exp_()
    return _cells.read_real()


def below(end: int) -> int:
    """torch.randint(0, end, (1,)).item()"""
    _cells.whole.random_(0, end)
    return _cells.read_whole()


def round_p(p: float) -> float:
    """Return what `torch.rand(1) < p` compares with: p as a float32."""
    return float(np.float32(p))


# ---- arguments


def probability(p: float) -> float:
    """Return `p`; raise ValueError if it is no probability."""
    if not 0 <= p <= 1:
        raise ValueError(f"a probability lies between 0 and 1; got {p}.")
    return p


def expect(met: bool, key: str, what: str, got: object) -> None:
    """Raise ValueError about an argument unless a condition is met."""
    if not met:
        raise ValueError(f"{key}: expected {what}, got {got!r}.")
