"""The classes of another dataset in TRAIN's numbers: a part of them, under other names or numbers,
or several of an image.

    classes.json    {"n02123045": "cat", "7": ["cat", "kitten"], "aardvark": []}
    labels.json     {"a.jpg": [3], "b.jpg": [3, 7], "c.jpg": []}, or a list of such lists

A class is a name of TRAIN's, or its number there. An answer is right if it is one of the image's
classes. An image without a class of TRAIN's is left out, as in ImageNet-ReaL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from sslengine.data.manifest.classes import Classes
from sslengine.errors import DataError, listing, nearest
from sslengine.evaluation.per_class import PerClass

# Of each image: the classes that it shows.
Shown = list[frozenset[int]]


@dataclass(frozen=True)
class Known:
    """TRAIN's classes, by name and by number."""

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, classes: Classes) -> Known:
        """A name that is a number is the class of this number, where TRAIN has names alone."""
        names = classes.by_value
        count = range(len(classes.names) or classes.width)
        by_place = {str(number): number for number in count}
        return cls(names if any(map(str.isdecimal, names)) else {**by_place, **names})

    def number(self, value: Any, where: object) -> int:
        """Of a class in a file."""
        found = self.get(str(value))
        if found is None:
            raise DataError(
                f"{where}: {value!r} is no class of TRAIN. {nearest(str(value), self.numbers)}"
            )
        return found

    def get(self, name: str) -> int | None:
        return self.numbers.get(str(int(name)) if name.isdecimal() else name)

    def of_names(self, names: Sequence[str], file: Path | None) -> list[frozenset[int]]:
        """Of another dataset's classes: their numbers here. file: classes.json."""
        if file is None:
            found = [self.get(name) for name in names]
            return [frozenset() if each is None else frozenset([each]) for each in found]
        table = _read(file)
        if not isinstance(table, dict):
            raise DataError(f"{file}: expected names of classes, each with those of TRAIN.")
        unknown = [name for name in table if name not in names]
        if unknown:
            raise DataError(
                f"{file}: {unknown[0]!r} is no class of the images. {nearest(unknown[0], names)}"
            )
        return [self._several(table.get(name, []), file) for name in names]

    def of_images(self, file: Path, paths: Sequence[str]) -> Shown:
        """labels.json. A list has the images in the order of their files' names."""
        table = _read(file)
        if isinstance(table, list):
            if len(table) != len(paths):
                raise DataError(f"{file}: has {len(table)} entries for {len(paths)} images.")
            order = sorted(range(len(paths)), key=lambda place: PurePath(paths[place]).name)
            by_place = dict(zip(order, table, strict=True))
            return [self._several(by_place[place], file) for place in range(len(paths))]
        found = [_entry(table, path) for path in paths]
        if all(each is None for each in found):
            raise DataError(
                f"{file}: has no image of these; it has {listing(table, 3)}, they are "
                f"{listing(paths, 3)}."
            )
        return [self._several([] if each is None else each, file) for each in found]

    def _several(self, value: Any, file: Path) -> frozenset[int]:
        values = value if isinstance(value, list) else [value]
        return frozenset(self.number(each, file) for each in values)


def _entry(table: Mapping[str, Any], path: str) -> Any:
    """By the path, the file's name, or this without its ending."""
    pure = PurePath(path)
    return next((table[key] for key in (path, pure.name, pure.stem) if key in table), None)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def any_match(answers: Tensor, shown: Shown) -> dict[str, float]:
    """The accuracy, and if each image has one class what unequal classes hide."""
    right = [int(answer) in each for answer, each in zip(answers.tolist(), shown, strict=True)]
    if any(len(each) > 1 for each in shown):
        return {"accuracy": 100 * sum(right) / len(right)}
    labels = torch.tensor([number for each in shown for number in each])
    metrics = PerClass.of(answers, labels).metrics
    return {name: metrics[name] for name in ("accuracy", "balanced accuracy", "macro F1")}
