"""`--size`: the largest view of every recipe has it, and what depends on it follows."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from sslengine.command import recipes
from sslengine.command.front import main
from sslengine.command.list import KINDS
from sslengine.data.augment.transforms.views import ImgPilToPatchesAndImage
from sslengine.errors import ConfigError
from tests.command.photos import config_of, write_photos
from tests.tail import slow_but

# Patches of 6 pixels, of which SimMIM hides cells of 12, and of 14.
OF_SIX = {f"quickstart/{name}" for name in ("capi", "ijepa", "mae", "simmim")}
OF_FOURTEEN = {
    "photos/distillation",
    "pretrain/distillation/distillation_8gpu_vitb14",
    "pretrain/capi/capi_32gpu_vitl14",
    "pretrain/ijepa/ijepa_16gpu_vith14",
}
REFUSED = {*((name, 224) for name in OF_SIX), *((name, 96) for name in OF_FOURTEEN)}
RECIPES = [name for name in KINDS["recipes"].names() if name.split("/")[0] in
           ("photos", "small", "quickstart", "pretrain")]  # fmt: skip
QUICK = ["small/simclr", "quickstart/dino", "quickstart/mae", "quickstart/data2vec", "photos/ibot",
         "photos/jigsaw", "quickstart/pirl"]  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize("size", [96, 224])
@pytest.mark.parametrize("recipe", slow_but(QUICK, RECIPES))
def test_the_largest_view(recipe: str, size: int, photos: Path) -> None:
    given = [str(photos), f"--recipe={recipe}", f"--size={size}"]
    if (recipe, size) in REFUSED:
        with pytest.raises(
            ConfigError, match=rf"--size: views of {size} pixels are not whole patch"
        ):
            config_of(*given)
        return
    config = config_of(*given)
    views: Any = OmegaConf.to_container(config.DATA.TRAIN.TRANSFORMS)
    assert recipes.largest_side(views) == size
    trunk = config.MODEL.TRUNK
    if trunk.NAME != "timm":
        section = {"vision_transformer": "VISION_TRANSFORMERS"}.get(trunk.NAME, trunk.NAME.upper())
        assert trunk.get(section, {}).get("IMAGE_SIZE", size) == size


@pytest.mark.parametrize(
    ("recipe", "size", "expected"),
    [
        ("simclr/cpu", 224, {"TRANSFORMS.1.size": 224}),
        ("quickstart/dino", 96, {"TRANSFORMS.0.size_crops": [96, 48]}),
        ("photos/dino", 96, {"TRANSFORMS.0.size_crops": [96, 48]}),
        # Patches of 27 pixels in cells of 48, of 48 in 69.
        ("photos/pirl", 96, {"TRANSFORMS.0.crop_size_patches": 144}),
        ("quickstart/pirl", 96, {"TRANSFORMS.0.crop_size_patches": 207}),
        # Patches of 24 pixels in cells of 32: as many of the image as of 255.
        ("photos/jigsaw", 96, {"TRANSFORMS.0.size": 96, "TRANSFORMS.6.patch_jitter": 8}),
        ("quickstart/jigsaw", 81, {"TRANSFORMS.0.size": 84, "TRANSFORMS.6.patch_jitter": 6}),
        # The recipe's own.
        ("quickstart/swav", 48, {"TRANSFORMS.0.size_crops": [48, 24]}),
        ("quickstart/msn", 48, {"TRANSFORMS.0.size_crops": [48, 24]}),
    ],
)
def test_other_sides_keep_their_share(
    recipe: str, size: int, expected: dict[str, Any], photos: Path
) -> None:
    train = config_of(str(photos), f"--recipe={recipe}", f"--size={size}").DATA.TRAIN
    assert {key: OmegaConf.select(train, key) for key in expected} == expected


def test_a_network_of_another_patch_has_crops_of_whole_patches(photos: Path) -> None:
    given = [str(photos), "--method=dino", "--model=vit_small_patch14_dinov2"]
    assert config_of(*given).DATA.TRAIN.TRANSFORMS[0].size_crops == [224, 98]
    arguments = config_of(str(photos), "--recipe=simclr/cpu", "--model=vit_tiny_patch16_224")
    assert arguments.MODEL.TRUNK.TIMM.arguments.img_size == 28


@pytest.mark.parametrize(
    ("method", "size", "patch"),
    [("simclr", 100, 16), ("distillation", 98, 112), ("distillation", 112, 0)],
)
def test_views_are_whole_patches_of_all_networks(
    method: str, size: int, patch: int, photos: Path
) -> None:
    """Also of a plain method; the teacher of distillation has patches of 14 pixels."""
    said = [f"--method={method}", "--model=vit_tiny_patch16_224", f"--size={size}"]
    wrong = pytest.raises(ConfigError, match=f"{size} pixels are not whole patches of {patch},")
    with wrong if patch else nullcontext():
        config_of(str(photos), *said)


def test_views_without_a_side(photos: Path) -> None:
    given = ["--set=DATA.TRAIN.TRANSFORMS=[{name: ToTensor}]", "--method=simclr", "--size=96"]
    with pytest.raises(ConfigError, match="--size: no entry of config.DATA.TRAIN.TRANSFORMS has a"):
        config_of(str(photos), *given)
    assert ImgPilToPatchesAndImage.PATCH_JITTER == recipes.SHIFT


@pytest.mark.parametrize(
    "recipe", slow_but(["quickstart/mae"], ["quickstart/mae", "jigsaw/cpu", "pirl/cpu"])
)
def test_it_trains(recipe: str, photos: Path, tmp_path: Path) -> None:
    few = ["--batch-size=4", "--workers=0", "--set=OPTIMIZER.num_iterations=1"]
    given = [str(photos), f"--recipe={recipe}", "--size=96", "--device=cpu", *few]
    assert main(["train", *given, f"--out={tmp_path / 'run'}"]) == 0
