"""`--model`: names of timm's, torchvision's, of sslengine's trunks and of plugins'."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
from timm.models._hub import save_for_hf
from torchvision import models

from sslengine.command.front import main
from sslengine.command.networks import Network, find, names_of, trunks
from sslengine.command.train import choose, make_parser
from sslengine.config.run_folder import open_run
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.launch.cli import settled
from sslengine.launch.preflight import expect_fitting_shapes
from sslengine.registry import TRUNKS
from tests.command.photos import SMALL, write_photos

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


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


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
        ("vit_small_patch16_224", Network("timm", "vit_small_patch16_224")),
        ("vit_small_patch14_dinov2.lvd142m", Network("timm", "vit_small_patch14_dinov2.lvd142m")),
        ("resnet50", Network("timm", "resnet50")),  # of both
        ("torchvision:resnet50", Network("torchvision", "resnet50")),
        ("vit_b_16", Network("torchvision", "vit_b_16")),
        ("vision_transformer", Network("", "vision_transformer")),
        ("alexnet", Network("", "alexnet")),  # torchvision has one too
        ("torchvision:alexnet", Network("torchvision", "alexnet")),
    ],
)
def test_who_has_a_name(given: str, expected: Network) -> None:
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
    config = config_of(str(photos), "--method=simclr", f"--model={named}", f"--weights={file}")
    assert str(file) == config.MODEL.WEIGHTS_INIT.PARAMS_FILE
    assert config.MODEL.TRUNK.TIMM.model == "resnet10t"


def config_of(*arguments: str) -> Any:
    chosen, _ = choose(make_parser().parse_args(arguments))
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
    config = config_of(str(photos), "--method=simclr", f"--model={model}", "--size=96")
    assert library == config.MODEL.TRUNK.NAME.upper()
    assert config.MODEL.TRUNK[library].arguments == expected
    expect_fitting_shapes(config)


def test_a_trunk_and_its_side(photos: Path) -> None:
    config = config_of(str(photos), "--method=simclr", "--model=vision_transformer", "--size=96")
    assert config.MODEL.TRUNK.NAME == "vision_transformer"
    assert config.MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE == 96
    expect_fitting_shapes(config)


def test_weights_and_arguments_of_a_recipes_own_network(photos: Path) -> None:
    config = config_of(str(photos), "--recipe=photos/dinov3", "--size=96")
    arguments = config.MODEL.TRUNK.TIMM.arguments
    assert (arguments["img_size"], arguments["global_pool"]) == (96, "token")
    assert not config.MODEL.TRUNK.TIMM.pretrained
    assert config_of(
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
    dotted = config_of(str(photos), "--method=simclr", f"--model={plugin}:Mine", *SMALL)
    assert f"{plugin}:Mine" == dotted.MODEL.TRUNK.NAME
    assert dotted.CHECKPOINT.DIR == "runs/simclr-Mine"


def test_a_plugin_that_is_not_there(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["train", str(photos), "--method=simclr"], ["list", "models"]):
        assert main([*verb, "--plugin=not_there"]) == 2
        assert "importing 'not_there' fails" in capsys.readouterr().err
