from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.data.augment.explain import (
    FALLS_BACK,
    FLOATS,
    KNOWN,
    LATER,
    ON_BYTES,
    ON_LABELS,
    ON_TENSORS,
    explain,
    why_floats,
)
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.batch.collators import image_keys
from sslengine.registry import COLLATORS
from tests.data.augment.lists import (
    COLOUR,
    CROP,
    FLIP,
    LISTS,
    MASK,
    NORMALIZE,
    PATCHES,
    TENSOR,
    Entries,
    own,
)

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
BY_NAME = {path.relative_to(CONFIGS).as_posix(): path for path in CONFIGS.rglob("*.yaml")}
# All else is known, and leaves the workers as uint8.
CUT_FROM_BYTES = {"ImgPatchesFromTensor", "ShuffleImgPatches"}
# timm's, as the authors train with it: what follows it is made in the worker.
AS_PIL = "RandAugment"


def built(entries: Entries, keys: tuple[str, ...] = ("data",)) -> Pipeline:
    return Pipeline(entries, "T", keys)


def name_of(where: str) -> str:
    return where.partition("(")[2].rstrip(")").rpartition(":")[2]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_what_falls_back_in_the_configs_that_ship(name: str) -> None:
    said = yaml.safe_load(BY_NAME[name].read_text())
    data: Any = said.get("config", {}).get("DATA", {})
    for split in data.values():
        if isinstance(split, dict) and "TRANSFORMS" in split:
            keys = image_keys(COLLATORS.get(split.get("COLLATE_FUNCTION", "default_collate")))
            # A jigsaw of a thousand permutations takes long to make.
            entries = [
                {**entry, "num_perms": 4} if "num_perms" in entry else entry
                for entry in split["TRANSFORMS"]
            ]
            parts = explain(built(entries, keys))
            if AS_PIL in (names := [name_of(part.where) for part in parts]):
                assert parts[names.index(AS_PIL)].what == FALLS_BACK
                parts = parts[: names.index(AS_PIL)]
            for part in parts:
                cut = name_of(part.where) in CUT_FROM_BYTES
                assert part.what in ((ON_BYTES,) if cut else (KNOWN, LATER)), part


def told(entries: Entries, keys: tuple[str, ...] = ("data",)) -> list[str]:
    return [part.what for part in explain(built(entries, keys))]


def test_a_users_transform_gets_pil_images() -> None:
    entries = [CROP, own("Posterize"), FLIP, COLOUR, *TENSOR]
    assert told(entries) == [KNOWN, FALLS_BACK, KNOWN, KNOWN, LATER, LATER]


def test_a_tensor_in_the_middle() -> None:
    tensor = [FLOATS, ON_TENSORS, ON_TENSORS]
    expected = [KNOWN, *tensor, KNOWN, KNOWN, *tensor[:2]]
    assert told(LISTS["a tensor in the middle"], ()) == expected


LABEL = {"name": "OneHotEncode"}


def test_what_moves_pixels_or_takes_labels_stands_in_its_place() -> None:
    """A mask is drawn for a size; behind patches, for theirs."""
    entries = [CROP, LABEL, {"name": "ToTensor"}, MASK, NORMALIZE, PATCHES, MASK, LABEL]
    expected = [KNOWN, ON_LABELS, LATER, KNOWN, LATER, ON_BYTES, ON_BYTES, ON_LABELS]
    assert told(entries) == expected


def test_why_a_transform_gets_pil_images() -> None:
    entries = [
        own("OtherFlip"),
        {"name": "RandomCrop", "size": 9, "padding": 2},
        {"name": "RandomApply", "transforms": [FLIP, own("Posterize")]},
    ]
    own_class, arguments, inner = (part.why for part in explain(built(entries)))
    assert own_class == inner == "its class does not say `takes_arrays`"
    assert arguments == "its arguments are not known"


@pytest.mark.parametrize(
    ("entries", "keys", "why"),
    [
        ([CROP], ("data",), "no ToTensor"),
        ([CROP, *TENSOR], (), "the collator"),
        (LISTS["normalized by indices"], ("data",), "ToTensor"),
        ([{"name": "ToTensor", "indices": [0]}], ("data",), "ToTensor"),
        (LISTS["after normalize"], ("data",), "ToTensor"),
        ([CROP, *TENSOR, {**NORMALIZE, "std": [0.0]}], ("data",), "ToTensor"),
        ([CROP, *TENSOR, MASK, LABEL, own("Noise")], ("data",), "ToTensor"),
    ],
)
def test_why_floats_leave_the_worker(entries: Entries, keys: tuple[str, ...], why: str) -> None:
    pipeline = Pipeline(entries, "T")
    assert not built(entries, keys).cut.waits
    assert why_floats(pipeline.listed, keys).startswith(why)
