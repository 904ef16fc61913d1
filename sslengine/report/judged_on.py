"""What scores of runs were computed by and on: those of other metrics or images have no order.

Images are the same if their fingerprints are, and those of their labels, wherever they are. Where
an evaluation.json has no fingerprints, runs are compared by the keys of DATA that chose images.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sslengine.errors import listing

# Of DATA.TRAIN and DATA.TEST: what chooses the images and their classes.
_CHOOSES = (
    "DATA_PATHS", "DATASET_NAMES", "DATA_LIMIT", "DATA_LIMIT_SAMPLING", "LABEL_PATHS",
    "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR",
)  # fmt: skip
_SPLITS = ("train", "test")
# What evaluation.json has of the images of a split.
_IDENTIFIES = (".fingerprint", ".labels")


class Judged(Protocol):
    @property
    def folder(self) -> Path: ...

    @property
    def metric(self) -> str | None: ...

    @property
    def images(self) -> Mapping[str, Any]: ...


def images_of(evaluation: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return their numbers, what identifies them, what chose them by the config of `judge`."""
    data, scores = config.get("DATA", {}), evaluation.get("scores", [])
    found = dict(next((each.get("about", {}).get("images", {}) for each in scores), {}))
    for split, each in evaluation.get("images", {}).items():
        found |= {f"{split}{key}": each[key[1:]] for key in _IDENTIFIES if key[1:] in each}
    train, test = data.get("TRAIN", {}), data.get("TEST", {})
    chosen = {f"TRAIN.{key}": train.get(key) for key in _CHOOSES}
    chosen |= {f"TEST.{key}": test.get(key) for key in _CHOOSES if test.get(key) != train.get(key)}
    if data.get("HOLD_OUT", {}).get("SHARE"):
        chosen |= {f"HOLD_OUT.{key}": value for key, value in data["HOLD_OUT"].items()}
    for key, value in chosen.items():
        has_effect = any(value.values()) if isinstance(value, Mapping) else value not in (-1, None)
        if has_effect and value:
            found[key] = value
    return found


def numbers(images: Mapping[str, Any]) -> str:
    return ", ".join(f"{images[split]} {split} images" for split in _SPLITS if split in images)


def fingerprints(images: Mapping[str, Any]) -> str:
    """Write them with a few digits; empty if there is none."""
    found = {split: images.get(f"{split.upper()}.fingerprint") for split in _SPLITS}
    return ", ".join(f"{split} {_words(value)}" for split, value in found.items() if value)


def differs_in(judged: Sequence[Judged]) -> list[str]:
    """Return in what runs differ whose scores are put side by side: metric, images."""
    several = {"metric": {each.metric for each in judged}, "images": _group_by_images(judged)}
    return [name for name, found in several.items() if len(found) > 1]


def notes(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield which scores cannot be compared, with the keys in which their images differ."""
    metrics = dict.fromkeys(str(each.metric) for each in judged)
    if len(metrics) > 1:
        yield f"scores of different metrics cannot be compared: {', '.join(metrics)}"
    groups = _group_by_images(judged)
    if len(groups) > 1:
        yield "scores on different images cannot be compared:"
        sets = [group[0].images for group in groups]
        names = dict.fromkeys(name for each in sets for name in each)
        unlike = [
            name for name in names if any(each.get(name) != sets[0].get(name) for each in sets)
        ]
        for group, images in zip(groups, sets):
            told = ", ".join(f"{name} {_words(images[name])}" for name in unlike if name in images)
            yield f"{listing((str(each.folder) for each in group), 3)}: {told}"


def _group_by_images(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Put runs together that were judged on the same images."""
    identified = all(map(_is_identified, judged))
    found: dict[str, list[Judged]] = {}
    for each in judged:
        key = {name: value for name, value in each.images.items()
               if name in _SPLITS or name.endswith(_IDENTIFIES) == identified}  # fmt: skip
        found.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(each)
    return list(found.values())


def _is_identified(judged: Judged) -> bool:
    splits = [split.upper() for split in _SPLITS if split in judged.images]
    return bool(splits) and all(judged.images.get(f"{each}.fingerprint") for each in splits)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    text = str(value)
    return text[7:19] if text.startswith("sha256:") else text
