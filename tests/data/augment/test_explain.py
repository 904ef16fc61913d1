from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.data.augment.pipeline import (
    FALLS_BACK,
    KNOWN_OF_ANY,
    LATER,
    ON_TENSORS,
    Pipeline,
    explain,
)
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
            pipeline = Pipeline(entries, "T", keys)
            said = [(name_of(where), what) for where, what in explain(pipeline).items()]
            if AS_PIL in (names := [name for name, _ in said]):
                assert said[names.index(AS_PIL)][1] == FALLS_BACK
                said = said[: names.index(AS_PIL)]
            for name, what in said:
                cut = name in CUT_FROM_BYTES
                assert what in ((ON_TENSORS,) if cut else (KNOWN_OF_ANY, LATER)), name
            assert pipeline.cut.waits or AS_PIL in names


def told(entries: Entries) -> list[str]:
    return list(explain(Pipeline(entries, "T", ("data",))).values())


def test_a_users_transform_gets_pil_images() -> None:
    entries = [CROP, own("Posterize"), FLIP, COLOUR, *TENSOR]
    known = KNOWN_OF_ANY
    assert told(entries) == [known, FALLS_BACK, known, known, LATER, LATER]


def test_what_follows_a_tensor() -> None:
    entries = [CROP, {"name": "ToTensor"}, NORMALIZE, PATCHES, {"name": "OneHotEncode"}]
    assert told(entries) == [KNOWN_OF_ANY, LATER, LATER, ON_TENSORS, KNOWN_OF_ANY]


@pytest.mark.parametrize(
    ("entries", "keys"),
    [
        ([CROP], ("data",)),
        ([CROP, *TENSOR], ()),
        (LISTS["normalized by indices"], ("data",)),
        ([{"name": "ToTensor", "indices": [0]}], ("data",)),
        (LISTS["after normalize"], ("data",)),
        ([CROP, *TENSOR, {**NORMALIZE, "std": [0.0]}], ("data",)),
        ([CROP, *TENSOR, MASK, own("Noise")], ("data",)),
    ],
)
def test_where_floats_leave_the_worker(entries: Entries, keys: tuple[str, ...]) -> None:
    assert not Pipeline(entries, "T", keys).cut.waits
