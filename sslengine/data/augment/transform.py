"""What a transform is: an entry of a TRANSFORMS list.

A class with `__call__` is enough, and needs no base: it takes an image and returns one. With `draw`
as well, its pixels are made together with those of its neighbours:

    class SometimesInvert(Transform):
        def draw(self, size):                   # (height, width)
            return [Invert()] if torch.rand(1) < 0.5 else []

`draw` returns what a call returns, with lists of operations in the place of images; a Transform
without `__call__` does what it draws. All draws come from the global streams of Python, numpy and
torch, which are seeded for each sample. Transforms that do something else than make one image of
one derive from one of the other classes here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor
from torchvision.transforms import RandomApply

from sslengine.data.augment.operation import Operation
from sslengine.data.augment.view import Source, View, size_of

Sample = dict[str, list[Any]]
Render = Callable[[Source, Sequence[Operation]], Source]  # a back-end's
FOLLOW_THE_IMAGE = ("data_valid", "data_idx", "label")


class Transform:
    # Is it not to be made just to look?
    takes_long_to_make: ClassVar[bool] = False

    def __call__(self, image: Any) -> Any:
        for operation in self.draw(size_of(image)):
            image = operation.on_pil(image)
        return image

    def draw(self, size: Any) -> Any:
        """See above. A class that has `__call__` and not `draw` is called."""
        raise NotImplementedError

    def inner(self) -> Sequence[Any]:
        """Transforms that this one hands images on to: if one has no draw, it has none either."""
        return ()

    def on_bytes(self, pixels: Tensor) -> Any:
        """What a call makes of a tensor, of one that is still uint8. For a transform that returns
        its values unchanged, anywhere in the sample: so ToTensor, which it follows, can wait."""
        raise NotImplementedError

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        """How a sample goes through it. change: the transform, or what represents it."""
        images = sample["data"]
        for index in indices or range(len(images)):
            made = change(images[index])
            if isinstance(made, dict):
                for key, value in made.items():
                    if key != "data":
                        sample.setdefault(key, []).append(value)
                made = made["data"]
            images[index] = made

    @staticmethod
    def lazily(view: View, drawn: Any, render: Render) -> Any:
        """What a call returns, with views in the place of images."""
        return view.then(drawn)


class MakesKeys(Transform):
    """Returns a dictionary: the image under "data", and what else the sample is to have. (Any
    transform may return one; this one does so always, and so may have a draw.)"""

    @staticmethod
    def lazily(view: View, drawn: Any, render: Render) -> Any:
        return {**drawn, "data": view.then(drawn["data"])}


class MakesViews(Transform):
    """Returns several images, which all stay images of the sample; label, data_idx and data_valid
    go with each of them."""

    @staticmethod
    def count_views(*_: Any, **arguments: Any) -> int:
        """How many views of an image it makes, with these arguments."""
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

    @staticmethod
    def lazily(view: View, drawn: Any, render: Render) -> Any:
        """What several of them have in common is made once."""
        if len(drawn) > 1 and view.ops:
            view = View.of(render(view.source, view.ops))
        first = {id(ops[0]): ops[0] for ops in drawn if ops}
        begins = Counter(id(ops[0]) for ops in drawn if ops)
        made = {
            each: View.of(render(view.source, [first[each]]))
            for each, count in begins.items()
            if count > 1
        }
        return [
            made[id(ops[0])].then(ops[1:]) if ops and id(ops[0]) in made else view.then(ops)
            for ops in drawn
        ]


class MakesLabel(Transform):
    """Returns an image and its label."""

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        images = sample["data"]
        for index in indices or range(len(images)):
            images[index], sample["label"][index] = change(images[index])

    @staticmethod
    def lazily(view: View, drawn: Any, render: Render) -> Any:
        return view.then(drawn[0]), drawn[1]


class TakesAll(Transform):
    """Takes the list of all images and returns such a list; `draw` takes their sizes."""

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        sample["data"] = list(change(sample["data"]))

    @staticmethod
    def lazily(view: Any, drawn: Any, render: Render) -> Any:
        return [each.then(ops) for each, ops in zip(view, drawn, strict=True)]


class TakesLabels(Transform):
    """Takes one label and returns the new one."""

    @staticmethod
    def through(sample: Sample, indices: Sequence[int], change: Callable[[Any], Any]) -> None:
        sample["label"] = [change(label) for label in sample["label"]]


class Wraps(Transform):
    """Does what `change` does, a transform or a torchvision container of transforms."""

    change: Callable[[Any], Any]

    def __call__(self, image: Image.Image) -> Any:
        return self.change(image)

    def inner(self) -> Sequence[Any]:
        return [self.change]


def kind_of(transform: Any) -> type[Transform]:
    """Of a class without our base: one image to one."""
    return type(transform) if isinstance(transform, Transform) else Transform


def takes_bytes(transform: Any) -> bool:
    return kind_of(transform).on_bytes is not Transform.on_bytes


def probability(p: float) -> float:
    """`p`, if it is one."""
    if not 0 <= p <= 1:
        raise ValueError(f"a probability lies between 0 and 1; got {p}.")
    return p


def with_probability(p: float, *changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """All the changes, one after another, or none."""
    apply: Callable[[Any], Any] = RandomApply(list(changes), probability(p))
    return apply


# What earlier versions looked for in a class, and what says the same now.
GONE: Mapping[str, str] = {
    "makes_views": "derive it from MakesViews",
    "makes_label": "derive it from MakesLabel",
    "makes_keys": "derive it from MakesKeys",
    "takes_all": "derive it from TakesAll",
    "takes_labels": "derive it from TakesLabels",
    "only_moves": "derive it from Transform and define `on_bytes`",
}


def outdated(transform: Any) -> str:
    """In words, what to change in a class that was written for an earlier version."""
    kind = type(transform)
    for name, instead in GONE.items():
        if getattr(kind, name, False) is True:
            return (
                f"{kind.__name__}.{name} says nothing any more: {instead} (in "
                f"{Transform.__module__})."
            )
    return ""
