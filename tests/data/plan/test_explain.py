from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.data.collators import image_keys
from sslengine.data.plan.backend import build_backend
from sslengine.data.plan.explain import (
    DRAWN,
    FALLS_BACK,
    LATER,
    ON_TENSORS,
    PIXELS,
    explain,
    why_floats,
)
from sslengine.data.plan.plan import Plan
from sslengine.data.transforms.pipeline import Pipeline
from sslengine.registry import COLLATORS
from tests.data.plan.lists import COLOUR, CROP, FLIP, LISTS, NORMALIZE, TENSOR, Entries, own

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
BY_NAME = {path.relative_to(CONFIGS).as_posix(): path for path in CONFIGS.rglob("*.yaml")}
TENSORS = {"ToTensor", "Normalize", "ImgPatchesFromTensor", "ShuffleImgPatches"}
# All other lists are drawn as a whole and give uint8.
NOT_DRAWN = {
    "pretrain/pirl/pirl_32gpu_resnet50.yaml": {"ImgPilRandomPhotometric"},
    "pretrain/rotnet/rotnet_8gpu_resnet50.yaml": {"ImgRotatePil"},
    "quickstart/rotnet.yaml": {"ImgRotatePil"},
    "pretrain/jigsaw/jigsaw_8gpu_resnet50.yaml": TENSORS,
    "quickstart/jigsaw.yaml": TENSORS,
}


def planned(entries: Entries, keys: tuple[str, ...] = ("data",)) -> Plan:
    return Plan(Pipeline(entries, "T"), build_backend("pil"), keys)


def name_of(where: str) -> str:
    return where.partition("(")[2].rstrip(")").rpartition(":")[2]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_what_falls_back_in_the_configs_that_ship(name: str) -> None:
    data: Any = yaml.safe_load(BY_NAME[name].read_text())["config"].get("DATA", {})
    for split in data.values():
        if isinstance(split, dict) and "TRANSFORMS" in split:
            keys = image_keys(COLLATORS.get(split.get("COLLATE_FUNCTION", "default_collate")))
            # A jigsaw of a thousand permutations takes long to make.
            entries = [
                {**entry, "num_perms": 4} if "num_perms" in entry else entry
                for entry in split["TRANSFORMS"]
            ]
            parts = explain(planned(entries, keys))
            others = {name_of(part.where) for part in parts if part.what not in (DRAWN, LATER)}
            assert others == NOT_DRAWN.get(name, set())


def told(entries: Entries, keys: tuple[str, ...] = ("data",)) -> list[tuple[str, int | None]]:
    return [(part.what, part.segment) for part in explain(planned(entries, keys))]


def test_a_users_transform_ends_a_segment() -> None:
    entries = [CROP, own("Posterize"), FLIP, COLOUR, *TENSOR]
    assert told(entries) == [
        (DRAWN, 1),
        (FALLS_BACK, 1),
        (DRAWN, 2),
        (DRAWN, 2),
        (LATER, None),
        (LATER, None),
    ]


def test_a_tensor_in_the_middle() -> None:
    assert told(LISTS["a tensor in the middle"], ()) == [
        (DRAWN, 1),
        (PIXELS, 1),
        (ON_TENSORS, None),
        (ON_TENSORS, None),
        (DRAWN, 2),
        (DRAWN, 2),
        (PIXELS, 2),
        (ON_TENSORS, None),
    ]


def test_why_a_transform_is_not_drawn() -> None:
    entries = [
        own("Posterize"),
        own("OtherFlip"),
        {"name": "RandomCrop", "size": 9, "padding": 2},
        {"name": "RandomApply", "transforms": [FLIP, own("Posterize")]},
        {"name": "ImgRotatePil"},
    ]
    assert [part.why for part in explain(planned(entries))] == [
        "it has no draw",
        "its class changes one that the plan knows, and has no draw of its own",
        "with these arguments the plan does not know it",
        "it applies Posterize: it has no draw",
        "it makes a label",
    ]


@pytest.mark.parametrize(
    ("entries", "keys", "why"),
    [
        ([CROP], ("data",), "no ToTensor is among the TRANSFORMS"),
        ([CROP, *TENSOR], (), "the collator does not say that it only moves images"),
        (LISTS["normalized by indices"], ("data",), "T.3 (Normalize) is for some images only"),
        ([{"name": "ToTensor", "indices": [0]}], ("data",), "T.0 (ToTensor) is for some images"),
        (LISTS["after normalize"], ("data",), "T.3 (RandomErasing) follows ToTensor"),
        ([CROP, *TENSOR, {**NORMALIZE, "std": [0.0]}], ("data",), "T.3 (Normalize) follows"),
    ],
)
def test_why_floats_leave_the_worker(entries: Entries, keys: tuple[str, ...], why: str) -> None:
    pipeline = Pipeline(entries, "T")
    assert not planned(entries, keys).tail
    assert why_floats(pipeline.steps, keys).startswith(why)
