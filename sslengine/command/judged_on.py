"""What scores of runs were computed by and on: those of other metrics or images have no order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

# Of DATA.TRAIN and DATA.TEST: what chooses the images and their classes.
_CHOOSES = (
    "DATA_PATHS", "DATASET_NAMES", "DATA_LIMIT", "DATA_LIMIT_SAMPLING", "LABEL_PATHS",
    "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR",
)  # fmt: skip
_SPLITS = ("train", "test")


class Judged(Protocol):
    @property
    def metric(self) -> str | None: ...

    @property
    def images(self) -> Mapping[str, Any]: ...


def images_of(evaluation: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of images, and what chose them; config: that of `sslengine judge`."""
    data = config.get("DATA", {})
    train, test = (_chosen(data.get(split, {})) for split in ("TRAIN", "TEST"))
    held_out = data.get("HOLD_OUT", {}) if data.get("HOLD_OUT", {}).get("SHARE") else {}
    scores = evaluation.get("scores", [])
    return {
        **next((each.get("about", {}).get("images", {}) for each in scores), {}),
        **{f"TRAIN.{key}": value for key, value in train.items()},
        **{f"TEST.{key}": value for key, value in test.items() if value != train.get(key)},
        **{f"HOLD_OUT.{key}": value for key, value in held_out.items() if value},
    }


def _chosen(split: Mapping[str, Any]) -> dict[str, Any]:
    """Without what has no effect."""
    found = {key: split.get(key) for key in _CHOOSES}
    return {key: value for key, value in found.items() if value != -1 and _says_something(value)}


def _says_something(value: Any) -> bool:
    return any(value.values()) if isinstance(value, Mapping) else bool(value)


def numbers(images: Mapping[str, Any]) -> str:
    return ", ".join(f"{images[split]} {split} images" for split in _SPLITS if split in images)


def image_sets(judged: Sequence[Judged]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    found += (each.images for each in judged if each.images not in found)
    return found


def differs_in(judged: Sequence[Judged]) -> list[str]:
    """metric, images: in what runs differ whose scores are put side by side."""
    several = {"metric": len({each.metric for each in judged}), "images": len(image_sets(judged))}
    return [name for name, count in several.items() if count > 1]


def notes(judged: Sequence[Judged]) -> Iterator[str]:
    """Image sets are numbered from 1, and described by the keys in which they differ."""
    different = differs_in(judged)
    if "metric" in different:
        names = ", ".join(dict.fromkeys(str(each.metric) for each in judged))
        yield f"  note  scores of different metrics cannot be compared: {names}"
    if "images" in different:
        yield "  note  scores on different images cannot be compared:"
        sets = image_sets(judged)
        for number, each in enumerate(sets, 1):
            yield f"        images {number}: {_told(each, sets)}"


def _told(images: Mapping[str, Any], sets: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(name for each in sets for name in each)
    unlike = [name for name in names if any(each.get(name) != images.get(name) for each in sets)]
    return ", ".join(f"{name} {_words(images[name])}" for name in unlike if name in images)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={each}" for key, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
