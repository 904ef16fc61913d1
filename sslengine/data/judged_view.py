"""How images whose features are evaluated are read: single, labelled, without augmentation.

The transforms are those of DATA.TEST. If there are none, or they make several views: resize and
centre crop to the size of DATA.TRAIN (in the usual ratio of 256 to 224), with its normalisation;
where DATA.TRAIN names no size, the model was trained on unchanged images, and sees them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sslengine.data.augment.pipeline import Pipeline, build_transform, walk_entries
from sslengine.data.augment.transform import MakesViews, TakesAll, unwrap
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.registry import TRANSFORMS


def judged_train(data: DataOptions) -> SplitOptions:
    """DATA.TRAIN for this: of its first source, with labels if it has some."""
    train = data.TRAIN
    labelled = bool(train.LABEL_SOURCES) and train.LABEL_TYPE == "standard"
    return replace(
        train,
        DATA_SOURCES=train.DATA_SOURCES[:1],
        DATA_PATHS=train.DATA_PATHS[:1],
        DATASET_NAMES=train.DATASET_NAMES[:1],
        LABEL_SOURCES=train.LABEL_SOURCES[:1],
        LABEL_PATHS=train.LABEL_PATHS[:1],
        LABEL_TYPE="standard" if labelled else "sample_index",
        TRANSFORMS=choose(data)[0],
        FIELDS=[],
        COLLATE_FUNCTION="default_collate",
        COLLATE_FUNCTION_PARAMS={},
        INPUT_KEY_NAMES=["data"],
        TARGET_KEY_NAMES=["label"],
    )


def choose(data: DataOptions) -> tuple[list[dict[str, Any]], str]:
    """The entries of a TRANSFORMS list, and a description of where they come from."""
    given = data.TEST.TRANSFORMS
    if given and not _makes_views(given):
        return given, "from config.DATA.TEST"
    resized, how = _resized(_size(data.TRAIN.TRANSFORMS))
    entries: list[dict[str, Any]] = [*resized, {"name": "ToTensor"}]
    named = (each for each in walk_entries(data.TRAIN.TRANSFORMS) if each["name"] == "Normalize")
    normalise = next(named, None)
    how += ", not normalised" if normalise is None else ", normalised as in training"
    if normalise is not None:
        entries.append({key: normalise[key] for key in ("name", "mean", "std")})
    why = "config.DATA.TEST makes several views" if given else "config.DATA.TEST has none"
    return entries, f"{why}: {how}"


def _resized(side: int | None) -> tuple[list[dict[str, Any]], str]:
    if side is None:
        return [], "unchanged, for config.DATA.TRAIN names no size"
    margin = round(side * 256 / 224)
    entries = [{"name": "Resize", "size": margin}, {"name": "CenterCrop", "size": side}]
    return entries, f"resized to {margin}, cropped to {side} in the centre"


def described(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries for a report: with the interpolation, also where it is the default."""
    made = []
    for entry in entries:
        nested = {
            key: described(value)
            for key, value in entry.items()
            if isinstance(value, list) and any(isinstance(each, Mapping) for each in value)
        }
        kind, mode = TRANSFORMS.get(TRANSFORMS.name_in(entry)), None
        if not getattr(kind, "takes_long_to_make", False):
            mode = getattr(unwrap(build_transform(entry, "view")), "interpolation", None)
        filtered = {} if mode is None else {"interpolation": str(getattr(mode, "value", mode))}
        made.append({**entry, **nested, **filtered})
    return made


def augmented(entries: list[dict[str, Any]], data: DataOptions) -> list[dict[str, Any]]:
    """The entries for training with labels: random crops and flips in place of resizing."""
    rest = [each for each in entries if each.get("name") not in ("Resize", "CenterCrop")]
    side = _size(entries[::-1]) or _size(data.TRAIN.TRANSFORMS)
    crop = [{"name": "RandomResizedCrop", "size": side}] if side else []
    return [*crop, {"name": "RandomHorizontalFlip"}, *rest]


def _makes_views(entries: list[dict[str, Any]]) -> bool:
    steps = Pipeline(entries, "config.DATA.TEST.TRANSFORMS").steps
    return any(issubclass(step.kind, (MakesViews, TakesAll)) for step in steps)


def _size(entries: Any) -> int | None:
    """The side of the training images; the largest, if the first entry with a size has several."""
    for entry in walk_entries(entries):
        name = str(entry.get("name"))
        value = entry.get("size_crops", entry.get("size") if "Crop" in name or "Resize" in name
                          else None)  # fmt: skip
        sizes = value if isinstance(value, list) else [value]
        if all(isinstance(each, int) for each in sizes) and sizes:
            return int(max(sizes))
    return None
