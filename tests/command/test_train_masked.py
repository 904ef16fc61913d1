"""`sslengine train` with a vision transformer of timm's: fresh heads on trained weights, hidden patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from sslengine.checkpoint.files import read
from sslengine.command.bands import MeasuredBands
from sslengine.command.front import main
from sslengine.command.train import choose, make_parser
from sslengine.config.resolve import resolve
from sslengine.data.augment.backends.base import build_backend
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.plan import Plan
from sslengine.data.loading.seeding import seed_sample
from sslengine.errors import ConfigError
from tests.command.photos import SMALL, write_photos
from tests.integration.command import ROOT
from tests.tail import slow_but

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
    chosen, _ = choose(make_parser().parse_args([str(photos), "--device=cpu", *arguments]))
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


def test_weights_of_timms_for_a_method_with_its_own_trunk(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    chosen = _chosen(str(photos), "--method=mae", f"--model={MODEL}", "--pretrained")
    assert chosen["MODEL.TRUNK.TIMM.pretrained"] == "true"


def test_masks_are_those_of_the_network_that_is_named(tmp_path: Path) -> None:
    photos, key = write_photos(tmp_path / "photos"), "DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size"
    of = {14: "vit_small_patch14_dinov2", 16: MODEL}
    for recipe, own in (("photos/capi", 16), ("photos/ijepa", 16), ("quickstart/ijepa", 6)):
        for patch, model in of.items():
            given = [f"--recipe={recipe}", f"--model={model}", "--size=224"]
            assert _chosen(str(photos), *given).get(key, str(own)) == str(patch)


def test_pixels_of_many_bands_are_reconstructed(tmp_path: Path) -> None:
    """The head of SimMIM has those of the images, not of photos."""
    values = np.random.default_rng(0).integers(0, 4000, (8, 40, 44, 4), dtype=np.uint16)
    np.save(tmp_path / "bands.npy", values)
    given = [str(tmp_path / "bands.npy"), "--method=simmim", f"--model={MODEL}", "--size=32"]
    assert "channels: 4" in _chosen(*given)["MODEL.HEAD.PARAMS"]
    few = ["--workers=0", "--device=cpu", "--batch-size=4", "--set=OPTIMIZER.num_iterations=1",
           "--set=MODEL.TRUNK.TIMM.arguments={img_size:32,depth:1}"]  # fmt: skip
    assert main(["train", *given, *few, "--out", str(tmp_path / "run")]) == 0


def test_many_bands_of_a_recipe_with_colour_jitter(tmp_path: Path) -> None:
    """Brightness and contrast remain; saturation and hue ask for RGB."""
    values = np.random.default_rng(0).integers(0, 4000, (8, 40, 44, 4), dtype=np.uint16)
    np.save(tmp_path / "bands.npy", values)
    given = [str(tmp_path / "bands.npy"), "--method=data2vec", f"--model={MODEL}", "--size=32"]
    views = _chosen(*given)["DATA.TRAIN.TRANSFORMS"]
    assert "brightness: 0.4, contrast: 0.4, saturation: 0, hue: 0" in views
    few = ["--workers=0", "--device=cpu", "--batch-size=4", "--set=OPTIMIZER.num_iterations=1",
           "--set=MODEL.TRUNK.TIMM.arguments={img_size:32,depth:1}",
           "--set=LOSS.data2vec_loss.top_layers=1"]  # fmt: skip
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
    pipeline = Pipeline(bands.views(views), "views")
    for number in range(6):
        image = np.full((300, 320, 4), 7 + number, np.float32)
        sample: Any = {"data": [image], "data_valid": [1], "data_idx": [number], "label": [0]}
        seed_sample(0, (0, number))
        Plan(pipeline, build_backend("pil"), limits=(0.0, 3999.0))(sample)
        assert all(each.shape[-3] == 4 for each in sample["data"] if isinstance(each, torch.Tensor))


@pytest.mark.slow
def test_stored_images_that_pillow_holds_are_not_taken_for_arrays(tmp_path: Path) -> None:
    """A transform of Pillow's images, and one mean for all three bands."""
    photos = write_photos(tmp_path / "photos")
    views = ("[{name:Resize,size:[32,32]},{name:TrivialAugmentWide},{name:ImgReplicatePil,num_times:2},"
             "{name:ToTensor},{name:Normalize,mean:[0.5],std:[0.25]}]")  # fmt: skip
    given = ["--method=simclr", "--model=resnet18", "--workers=0", "--device=cpu", "--batch-size=4",
             "--set=DATA.TRAIN.IMAGE_MODE=stored", f"--set=DATA.TRAIN.TRANSFORMS={views}",
             "--set=OPTIMIZER.num_iterations=1", f"--out={tmp_path / 'run'}"]  # fmt: skip
    assert main(["train", str(photos), *given]) == 0
