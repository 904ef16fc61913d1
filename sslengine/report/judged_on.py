"""What scores of runs were computed by and on: those of other metrics or images have no order.

Images are the same if their fingerprints are, and those of their labels, wherever they are. An
evaluation.json without fingerprints is compared by the keys of DATA that chose its images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

# Of DATA.TRAIN and DATA.TEST: what chooses the images and their classes.
_CHOOSES = (
    "DATA_PATHS", "DATASET_NAMES", "DATA_LIMIT", "DATA_LIMIT_SAMPLING", "LABEL_PATHS",
    "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR",
)  # fmt: skip
_SPLITS = ("train", "test")
# What evaluation.json has of the images of a split.
_IDENTIFIES = ("fingerprint", "labels")
_SHOWN = 12  # digits of a fingerprint


class Judged(Protocol):
    @property
    def metric(self) -> str | None: ...

    @property
    def images(self) -> Mapping[str, Any]: ...


def images_of(evaluation: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Their numbers, what identifies them, what chose them; config: that of `sslengine judge`."""
    data = config.get("DATA", {})
    train, test = (_chosen(data.get(split, {})) for split in ("TRAIN", "TEST"))
    held_out = data.get("HOLD_OUT", {}) if data.get("HOLD_OUT", {}).get("SHARE") else {}
    scores = evaluation.get("scores", [])
    return {
        **next((each.get("about", {}).get("images", {}) for each in scores), {}),
        **_identities(evaluation.get("images", {})),
        **{f"TRAIN.{key}": value for key, value in train.items()},
        **{f"TEST.{key}": value for key, value in test.items() if value != train.get(key)},
        **{f"HOLD_OUT.{key}": value for key, value in held_out.items() if value},
    }


def _identities(images: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`fingerprint` is there, and is None where there is none: of a stream."""
    return {f"{split}.{key}": each[key]
            for split, each in images.items() for key in _IDENTIFIES if key in each}  # fmt: skip


def _chosen(split: Mapping[str, Any]) -> dict[str, Any]:
    """Without what has no effect."""
    found = {key: split.get(key) for key in _CHOOSES}
    return {key: value for key, value in found.items() if value != -1 and _says_something(value)}


def _says_something(value: Any) -> bool:
    return any(value.values()) if isinstance(value, Mapping) else bool(value)


def numbers(images: Mapping[str, Any]) -> str:
    return ", ".join(f"{images[split]} {split} images" for split in _SPLITS if split in images)


def fingerprints(images: Mapping[str, Any]) -> str:
    """In a few digits; "" if there is none."""
    found = {split: images.get(f"{split.upper()}.fingerprint") for split in _SPLITS}
    return ", ".join(f"{split} {_words(value)}" for split, value in found.items() if value)


def same_images(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """By fingerprints, if both have them; otherwise by what chose them."""
    found = [_by_fingerprint(each) for each in (one, other)]
    if None in found:
        found = [_without_identity(each) for each in (one, other)]
    return found[0] == found[1]


def _by_fingerprint(images: Mapping[str, Any]) -> dict[str, Any] | None:
    """The numbers, fingerprints and labels; None if a split has no fingerprint."""
    splits = [split for split in _SPLITS if split in images]
    if not splits or not all(images.get(f"{each.upper()}.fingerprint") for each in splits):
        return None
    return {key: images[key] for key in images if key in splits or _is_identity(key)}


def _without_identity(images: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in images.items() if not _is_identity(key)}


def _is_identity(key: str) -> bool:
    return key.rpartition(".")[2] in _IDENTIFIES


def image_sets(judged: Sequence[Judged]) -> list[Mapping[str, Any]]:
    """One of each. Those without fingerprints come last: they may be like several of the others."""
    found: list[Mapping[str, Any]] = []
    for each in sorted(judged, key=lambda each: _by_fingerprint(each.images) is None):
        if not any(same_images(known, each.images) for known in found):
            found.append(each.images)
    return found


def number_in(sets: Sequence[Mapping[str, Any]], images: Mapping[str, Any]) -> int:
    """Of the set that they are, from 1."""
    return next(number for number, each in enumerate(sets, 1) if same_images(each, images))


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
    if isinstance(value, str) and value.startswith("sha256:"):
        return value.removeprefix("sha256:")[:_SHOWN]
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
