"""Every transform, collator and source that ships."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sslengine.data.augment.pipeline import Pipeline
from sslengine.registry import COLLATORS, TRANSFORMS
from sslengine.testing.promises import Suite
from tests.contracts.cases import Of, cases, forgotten

TENSOR = {"name": "ToTensor"}
CROP = {"name": "RandomResizedCrop", "size": 16}
VIEWS = [{"name": "ImgReplicatePil"}, {"name": "RandomResizedCrop", "size": 16}, TENSOR]
CROPS = {"total_num_crops": 3, "num_crops": [2, 1], "size_crops": [16, 8],
         "crop_scales": [[0.3, 1], [0.1, 0.5]]}  # fmt: skip
MULTICROP = [{"name": "ImgPilToMultiCrop", **CROPS}, TENSOR]
PATCHES = {"num_patches": 9, "patch_jitter": 2}
PIRL = {"name": "ImgPilToPatchesAndImage", "crop_size_image": 16, "crop_size_patches": 70}


def of(*before: Any, **arguments: Any) -> Of:
    return Of(arguments, more={"before": before})


TRANSFORMS_SMALL: dict[str, Of] = {
    "ImgReplicatePil": of(num_times=3),
    "ImgPilToPatchesAndImage": of(crop_size_image=16, crop_size_patches=70),
    "ImgPilToMultiCrop": of(**CROPS),
    "RandomResizedCropWithBox": of(size=16),
    "ImgPilMultiCropRandomApply": of(
        {"name": "ImgPilToMultiCrop", **CROPS}, prob=[1.0, 0.5, 0.0],
        transforms=[{"name": "ImgPilGaussianBlur", "p": 1.0}]),
    "ImgToTensor": of(),
    "ImgPilToRawTensor": of(),
    "ImgPilResizeLargerSide": of(size=40),
    "MNISTImgPil2RGB": of(size=40, box=[2, 3]),
    "MaskedImageModeling": of(TENSOR, patch_size=8, pred_ratio_var=[0.1]),
    "RandomPatchMask": of(CROP, TENSOR, patch_size=4, cell_size=8),
    "OneHotEncode": of(num_classes=4),
    "ImgPil2LabTensor": of(),
    "RandAugment": of(num_layers=2, magnitude=10),
    "VisslAutoAugment": of(),
    "ImgRotatePil": of(),
    "ImgPatchesFromTensor": of(TENSOR, **PATCHES),
    "ShuffleImgPatches": of(TENSOR, {"name": "ImgPatchesFromTensor", **PATCHES}, num_perms=8),
    "ImgPilColorDistortion": of(),
    "ImgPilGaussianBlur": of(p=0.9),
    "ImgPilRandomColorJitter": of(),
    "ImgPilRandomPhotometric": of(p=0.9),
    "ImgPilRandomSolarize": of(p=0.9),
    "GaussianNoise": of(std=[0.01, 0.1], p=0.9),
    "Corrupt": of(kind="shot_noise"),
    "ChannelDrop": of(p=0.5, fill="mean"),
}  # fmt: skip
COLLATORS_SMALL: dict[str, Of] = {
    "default_collate": of(),
    "simclr_collator": of(*VIEWS),
    "multicrop_collator": of(*MULTICROP),
    "moco_collator": of(*VIEWS),
    "siamese_collator": of(TENSOR, {"name": "ImgPatchesFromTensor", **PATCHES}),
    "patch_and_image_collator": of(PIRL, TENSOR),
    "ibot_multicrop_masking_collator": of(
        *MULTICROP, {"name": "MaskedImageModeling", "patch_size": 4}),
    "multi_block_collator": of(
        CROP, TENSOR, patch_size=2, min_keep=4),
    "visible_block_collator": of(CROP, TENSOR, patch_size=2, predicted=0.2),
    "spread_masks_collator": of(*MULTICROP, patch_size=4),
    "dropped_patches_collator": of(*MULTICROP, patch_size=4),
    "patch_noise_collator": of(CROP, TENSOR, patch_size=4),
    "identity_collator": of(TENSOR),
    "cutmixup_collator": of(*VIEWS, num_classes=4),
    "targets_one_hot_default_collator": Of(
        {"num_classes": 4}, more={"label": [[0], [1, 2]], "without": {
            "does_not_depend_on_workers": "no source that ships has such labels",
            "resumes_within_an_epoch": "the same"}}),
    "multicrop_mixup_collator": Of(more={"before": MULTICROP, "without": {
        "keeps_each_sample": "it mixes the images of two samples into one"}}),
}  # fmt: skip
# Loader workers take a second to start; each of these is in another module.
IN_WORKERS = {"MaskedImageModeling", "RandAugment", "cutmixup_collator", "shapes"}


def quick_workers(made: list[Any]) -> list[Any]:
    """One of a module is enough in the quick set."""
    return [pytest.param(*each.values, id=each.id, marks=_marks(*each.values)) for each in made]


def _marks(tried: Suite, promise: str) -> list[Any]:
    late = promise == "does_not_depend_on_workers" and tried.component not in IN_WORKERS
    return [pytest.mark.slow] if late else []


@pytest.mark.parametrize(("tried", "promise"), quick_workers(cases("transform", TRANSFORMS_SMALL)))
def test_transform(tried: Suite, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.parametrize(("tried", "promise"), quick_workers(cases("collator", COLLATORS_SMALL)))
def test_collator(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    assert forgotten(TRANSFORMS, TRANSFORMS_SMALL) == []
    assert forgotten(COLLATORS, COLLATORS_SMALL) == []


COUNTED = {"data_valid": [1], "data_idx": [0]}


@pytest.mark.parametrize("name", COLLATORS_SMALL)
def test_data_md_names_what_is_in_a_batch(name: str) -> None:
    tried = COLLATORS_SMALL[name]
    transforms = [*tried.more.get("before", ()), *([] if "before" in tried.more else [TENSOR])]
    pipeline = Pipeline(transforms or [TENSOR], "TRANSFORMS")
    label = tried.more.get("label", 0)
    samples = [
        pipeline({"data": [Image.new("RGB", (32, 32))], "label": [label], **COUNTED})
        for _ in "1234"
    ]
    batch = COLLATORS.get(name)(samples, **tried.arguments)
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \|(.*)", text, re.MULTILINE)
    held = batch.keys() - {"label", *COUNTED} if isinstance(batch, dict) else set()
    assert {*re.findall(r"`(\w+)`", row)} == held
