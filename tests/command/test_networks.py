"""Networks that `sslengine train` takes, by name, of masks, and the sides of their views."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf
from torchvision import models

from sslengine.checkpoint.files import read
from sslengine.command import recipes
from sslengine.command.arguments import make_parser
from sslengine.command.bands import MeasuredBands
from sslengine.command.front import main
from sslengine.command.list import KINDS
from sslengine.command.networks import StockNetwork, find, names_of, trunks
from sslengine.command.train import choose
from sslengine.config.resolve import resolve
from sslengine.config.run_folder import open_run
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.views import ImgPilToPatchesAndImage
from sslengine.data.seeding import seed_sample
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.launch.cli import settled
from sslengine.launch.preflight import expect_fitting_shapes
from sslengine.registry import TRUNKS
from tests.command.photos import SMALL, config_of, write_photos
from tests.integration.command import ROOT
from tests.tail import slow_but

PLUGIN = """
from torch import nn
from sslengine.models.trunks.base import Trunk
from sslengine.registry import register_trunk


@register_trunk("my_own_trunk")
class Mine(Trunk):
    feature_names = ("flatten",)

    def __init__(self, in_chans=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(in_chans, 8, 3, stride=4), nn.ReLU(),
                                    nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def features(self, x, wanted):
        return {"flatten": self.layers(x)}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_networks.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_networks"
    sys.modules.pop("my_networks", None)
    for table in (TRUNKS._things, TRUNKS._owners):
        table.pop("my_own_trunk", None)


def test_names_of_libraries_are_read_from_their_source() -> None:
    assert [*names_of("timm")] == sorted(timm.list_models())
    assert [*names_of("torchvision")] == models.list_models(module=models)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("vit_small_patch16_224", StockNetwork("timm", "vit_small_patch16_224")),
        (
            "vit_small_patch14_dinov2.lvd142m",
            StockNetwork("timm", "vit_small_patch14_dinov2.lvd142m"),
        ),
        ("resnet50", StockNetwork("timm", "resnet50")),  # of both
        ("torchvision:resnet50", StockNetwork("torchvision", "resnet50")),
        ("vit_b_16", StockNetwork("torchvision", "vit_b_16")),
        ("vision_transformer", StockNetwork("", "vision_transformer")),
        ("alexnet", StockNetwork("", "alexnet")),  # torchvision has one too
        ("torchvision:alexnet", StockNetwork("torchvision", "alexnet")),
    ],
)
def test_who_has_a_name(given: str, expected: StockNetwork) -> None:
    assert find(given) == expected


def test_names_that_nobody_has() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'vision_transformer'"):
        find("vision_transformr")
    with pytest.raises(UnknownNameError, match=r"torchvision has no 'resnet5'. Did you mean"):
        find("torchvision:resnet5")
    with pytest.raises(ConfigError, match=r"--pretrained: resnet_sk is a trunk .* --weights"):
        find("resnet_sk").keys(224, False, pretrained=True)


def test_the_name_of_weights_is_no_network(tmp_path: Path, photos: Path) -> None:
    """What the error advises opens a folder as timm saves it."""
    folder = tmp_path / "weights"
    save_for_hf(timm.create_model("resnet10t"), str(folder), safe_serialization=True)
    for given in (f"local-dir:{folder}", "hf-hub:timm/resnet10t.c3_in1k"):
        with pytest.raises(ConfigError, match=r"names weights.*--model NAME --weights"):
            find(given)
    named = json.loads((folder / "config.json").read_text())["architecture"]
    file = folder / "model.safetensors"
    config = settled_config(str(photos), "--method=simclr", f"--model={named}", f"--weights={file}")
    assert str(file) == config.MODEL.WEIGHTS_INIT.PARAMS_FILE
    assert config.MODEL.TRUNK.TIMM.model == "resnet10t"


def settled_config(*arguments: str) -> Any:
    chosen, _ = choose(make_parser("sslengine.command.train").parse_args(arguments))
    (run,) = settled(chosen, [])
    return run.config


@pytest.mark.parametrize(
    ("model", "library", "expected"),
    [
        ("regnet_y_400mf", "TORCHVISION", {}),
        ("vit_b_16", "TORCHVISION", {"image_size": 96}),
        ("vit_tiny_patch16_224", "TIMM", {"img_size": 96}),
        ("resnet10t", "TIMM", {}),
    ],
)
def test_networks_for_images_of_another_side(
    model: str, library: str, expected: dict[str, Any], photos: Path
) -> None:
    config = settled_config(str(photos), "--method=simclr", f"--model={model}", "--size=96")
    assert library == config.MODEL.TRUNK.NAME.upper()
    assert config.MODEL.TRUNK[library].arguments == expected
    expect_fitting_shapes(config)


def test_a_trunk_and_its_side(photos: Path) -> None:
    config = settled_config(
        str(photos), "--method=simclr", "--model=vision_transformer", "--size=96"
    )
    assert config.MODEL.TRUNK.NAME == "vision_transformer"
    assert config.MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE == 96
    expect_fitting_shapes(config)


def test_weights_and_arguments_of_a_recipes_own_network(photos: Path) -> None:
    config = settled_config(str(photos), "--recipe=photos/dinov3", "--size=96")
    arguments = config.MODEL.TRUNK.TIMM.arguments
    assert (arguments["img_size"], arguments["global_pool"]) == (96, "token")
    assert not config.MODEL.TRUNK.TIMM.pretrained
    assert settled_config(
        str(photos), "--recipe=simclr/continued", "--pretrained"
    ).MODEL.TRUNK.TIMM.pretrained


def test_a_trunk_of_a_plugin_is_listed_and_trained(
    plugin: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "models", "--plugin", plugin]) == 0
    listed, told = capsys.readouterr()
    assert {"my_own_trunk", "vision_transformer"} <= {*listed.split()}
    assert not {"timm", "torchvision"} & {*listed.split()}
    assert f"{len(trunks())} trunks for --model, and {len(timm.list_models())} networks" in told
    arguments = ["--method=simclr", "--model=my_own_trunk", *SMALL, "--out", str(tmp_path / "run")]
    assert main(["train", str(photos), *arguments, "--plugin", plugin]) == 0
    config = open_run(tmp_path / "run", trusted=True).config
    assert ("my_own_trunk", [plugin]) == (config.MODEL.TRUNK.NAME, config.PLUGINS)
    dotted = settled_config(str(photos), "--method=simclr", f"--model={plugin}:Mine", *SMALL)
    assert f"{plugin}:Mine" == dotted.MODEL.TRUNK.NAME
    assert dotted.CHECKPOINT.DIR == "runs/simclr-Mine"


# ---- `--size`: the largest view of every recipe has it, and what depends on it follows.


# Patches of 6 pixels, of which SimMIM hides cells of 12, and of 14.
OF_SIX = {f"quickstart/{name}" for name in ("capi", "ijepa", "mae", "simmim")}
OF_FOURTEEN = {
    "photos/distillation", "pretrain/distillation/distillation_8gpu_vitb14",
    "pretrain/capi/capi_32gpu_vitl14", "pretrain/ijepa/ijepa_16gpu_vith14",
}  # fmt: skip
REFUSED = {*((name, 224) for name in OF_SIX), *((name, 96) for name in OF_FOURTEEN)}
RECIPES = [name for name in KINDS["recipes"].names() if name.split("/")[0] in
           ("photos", "small", "quickstart", "pretrain")]  # fmt: skip
QUICK = ["small/simclr", "quickstart/dino", "quickstart/mae", "quickstart/data2vec", "photos/ibot",
         "photos/jigsaw", "quickstart/pirl"]  # fmt: skip


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


# ---- `sslengine train` with a vision transformer of timm's: fresh heads on trained weights,
# hidden patches.


MODEL = "vit_tiny_patch16_224"
FEW = ["--batch-size=8", "--set=OPTIMIZER.num_iterations=2",
       "--set=MODEL.TRUNK.TIMM.arguments={img_size:32,dynamic_img_size:true,depth:2}"]  # fmt: skip


@pytest.mark.parametrize("method", slow_but(["ibot"], ["ibot", "dinov2", "dino"]))
def test_continued_from_a_file_of_timms(method: str, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    torch.manual_seed(0)
    network = timm.create_model(MODEL, img_size=32, depth=2)
    save_file(network.state_dict(), tmp_path / "network.safetensors")
    heads = {"in_dim": "auto", "num_clusters": [16], "hidden_dim": 8, "bottleneck_dim": 4}
    number = 2 if method == "dinov2" else 1
    listed: list[Any] = [["dino_head", heads]] * number + [["identity", {}]] * (number - 1)
    arguments = [
        f"--recipe={method}/continued", "--weights", str(tmp_path / "network.safetensors"),
        f"--model={MODEL}", *SMALL[:2], *SMALL[4:], *FEW, f"--set=MODEL.HEAD.PARAMS={_written(listed)}",
        "--lr=1e-9", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(["train", str(photos), *arguments]) == 0
    (file,) = (tmp_path / "run" / "checkpoints").glob("checkpoint.torch")
    state = read(file)["classy_state_dict"]["base_model"]["model"]["trunk"]
    if method != "dino":
        assert state["mask_token"].shape == (1, 192)
    weights = load_file(tmp_path / "run" / "weights" / "model.safetensors")
    timm.create_model(MODEL, img_size=32, depth=2, num_classes=0).load_state_dict(weights)
    torch.testing.assert_close(
        state["blocks.1.mlp.fc2.weight"], network.blocks[1].mlp.fc2.weight.detach()
    )


def _written(value: Any) -> str:
    """As a value on the command line."""
    return str(value).replace("'", "").replace(" ", "")


def _chosen(photos: Path | str, *arguments: str) -> dict[str, str]:
    chosen, _ = choose(
        make_parser("sslengine.command.train").parse_args([str(photos), "--device=cpu", *arguments])
    )
    return dict(each.removeprefix("config.").split("=", 1) for each in chosen)


def test_masks_and_crops_have_the_patches_of_the_network(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    fourteen = _chosen(photos, "--method=dinov2", "--model=vit_small_patch14_dinov2")
    assert fourteen["DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size"] == "14"
    assert fourteen["DATA.TRAIN.TRANSFORMS.0.size_crops"] == "[224,98]"
    usual = _chosen(photos, "--method=ibot")
    assert usual["MODEL.TRUNK.TIMM.model"] == "vit_small_patch16_224"
    assert "DATA.TRAIN.TRANSFORMS.0.size_crops" not in usual
    with pytest.raises(ConfigError, match="'resnet18' is no network of timm's that embeds patches"):
        _chosen(photos, "--method=ibot", "--model=resnet18")
    for method, model in (("dinov2", "swin_tiny_patch4_window7_224"), ("msn", "test_vit3")):
        with pytest.raises(ConfigError, match=f"the class token, and '{model}' has none"):
            _chosen(photos, f"--method={method}", f"--model={model}")


@pytest.mark.parametrize("method", slow_but(["ijepa"], ["capi", "data2vec", "ijepa", "mae", "msn"]))
def test_a_method_with_its_own_trunk_takes_a_network_of_timms(method: str, tmp_path: Path) -> None:
    """By its name as by --recipe; features are the mean of the patches where those of its trunk are."""
    photos, out = write_photos(tmp_path / "photos"), tmp_path / "run"
    given = [str(photos), f"--model={MODEL}", "--size=96"]
    named, recipe = (
        _chosen(*given, each) for each in (f"--method={method}", f"--recipe={method}/1gpu")
    )
    network = {key for key in named if key.startswith("MODEL.TRUNK.")}
    assert network
    assert all(named[key] == recipe[key] for key in network)
    averaged = "global_pool: avg" in named["MODEL.TRUNK.TIMM.arguments"]
    assert averaged == (method in ("capi", "data2vec", "ijepa"))
    few = ["--batch-size=4", "--workers=0", "--set=OPTIMIZER.num_iterations=1", f"--out={out}"]
    given += [f"--method={method}", "--device=cpu", *few]
    assert main(["train", *given]) == 0
    assert timm.create_model(f"local-dir:{out}/weights", pretrained=True).num_features == 192


def test_masks_are_those_of_the_network_that_is_named(tmp_path: Path) -> None:
    photos, key = write_photos(tmp_path / "photos"), "DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size"
    of = {14: "vit_small_patch14_dinov2", 16: MODEL}
    for recipe, own in (("photos/capi", 16), ("photos/ijepa", 16), ("quickstart/ijepa", 6)):
        for patch, model in of.items():
            given = [f"--recipe={recipe}", f"--model={model}", "--size=224"]
            assert _chosen(str(photos), *given).get(key, str(own)) == str(patch)


def test_pixels_of_many_bands_are_reconstructed(tmp_path: Path) -> None:
    """SimMIM's have as many channels as the images, not as photos."""
    values = np.random.default_rng(0).integers(0, 4000, (8, 40, 44, 4), dtype=np.uint16)
    np.save(tmp_path / "bands.npy", values)
    given = [str(tmp_path / "bands.npy"), "--method=simmim", f"--model={MODEL}", "--size=32"]
    few = ["--workers=0", "--device=cpu", "--batch-size=4", "--set=OPTIMIZER.num_iterations=1",
           "--set=MODEL.TRUNK.TIMM.arguments={img_size:32,depth:1}"]  # fmt: skip
    assert main(["train", *given, *few, "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    "method",
    slow_but(
        ["dino", "mae", "simclr"],
        sorted(path.stem for path in (ROOT / "configs" / "photos").glob("*.yaml")),
    ),
)
def test_views_of_each_recipe_take_many_bands(method: str) -> None:
    """As `sslengine train` changes them; random ones are drawn six times."""
    views: Any = OmegaConf.to_container(
        resolve([f"config=photos/{method}"]).config.DATA.TRAIN.TRANSFORMS
    )
    bands = MeasuredBands("whole numbers", 0.0, 3999.0, [2000.0] * 4, [1000.0] * 4)
    pipeline = Pipeline(bands.views(views), "views", limits=(0.0, 3999.0))
    for number in range(6):
        image = np.full((300, 320, 4), 7 + number, np.float32)
        sample: Any = {"data": [image], "data_valid": [1], "data_idx": [number], "label": [0]}
        seed_sample(0, (0, number))
        pipeline(sample)
        assert all(each.shape[-3] == 4 for each in sample["data"] if isinstance(each, torch.Tensor))
