from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from sslengine.command.convert import main
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.errors import SSLEngineError
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.from_torchvision import MARK

SIDE = 32
RESNET = ["config=pretrain/simsiam/simsiam_1node_resnet50", "config.MODEL.TRUNK.RESNETS.DEPTH=18"]
HEAD = [
    "config.MODEL.HEAD.PARAMS=[[predictor_head,{dims: [512,8], predictor_dims: [8,4,8]}]]",
]
VIT = [
    "config=pretrain/dino/dino_16gpu_vits16",
    *(f"config.MODEL.TRUNK.VISION_TRANSFORMERS.{key}={value}"
      for key, value in {"HIDDEN_DIM": 192, "NUM_HEADS": 3, "MLP_DIM": 768}.items()),
]  # fmt: skip


def _convert(config: list[str], source: Path, to: str, out: Path, *more: str) -> None:
    main([*config, "--from", str(source), "--to", to, "--out", str(out), *more])


def _library(model: nn.Module, file: Path) -> Path:
    """Its weights in a file, with statistics that are not those of a new model."""
    for name, buffer in model.named_buffers():
        if "running_var" in name:
            buffer.uniform_(0.5, 1.5)
    torch.save(model.state_dict(), file)
    return file


def _outputs(model: nn.Module, file: Path, size: int = SIDE) -> torch.Tensor:
    model.load_state_dict(torch.load(file, weights_only=True))
    torch.manual_seed(0)
    with torch.no_grad():
        return model.eval()(torch.randn(2, 3, size, size))


def test_torchvision_to_vissl_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = torchvision.models.resnet18()
    file = _library(original, tmp_path / "in.pth")
    size = f"--image-size={SIDE}"
    _convert(RESNET + HEAD, file, "vissl", tmp_path / "v.torch",
             "--skip=fc.", "--made-by=torchvision:resnet18", size)  # fmt: skip
    told = capsys.readouterr().out
    assert "torchvision:resnet18: outputs equal the feature" in told
    assert "bit by bit" in told
    content = torch.load(tmp_path / "v.torch", weights_only=True)
    trunk = content["classy_state_dict"]["base_model"]["model"]["trunk"]
    assert "_feature_blocks.conv1.weight" in trunk
    _convert(RESNET, tmp_path / "v.torch", "torchvision:resnet18", tmp_path / "back.pth", size)
    _convert(RESNET, tmp_path / "v.torch", "timm:resnet18", tmp_path / "timm.pth", size)
    original.fc = nn.Identity()
    expected = original.eval().state_dict()
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert back.keys() == expected.keys()
    assert all(
        torch.equal(back[name], value)
        for name, value in expected.items()
        if "num_batches" not in name
    )
    images = _outputs(timm.create_model("resnet18", num_classes=0), tmp_path / "timm.pth")
    torch.testing.assert_close(images, _outputs(original, tmp_path / "back.pth"))


@pytest.mark.slow
def test_timm_to_sslengine_and_back(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    original = timm.create_model(name)
    file = _library(original, tmp_path / "in.pth")
    _convert(VIT, file, "sslengine", tmp_path / "s.torch", "--skip=head.", f"--made-by=timm:{name}")
    _convert(VIT, tmp_path / "s.torch", f"timm:{name}", tmp_path / "out.pth")
    original.reset_classifier(0)
    torch.save(original.state_dict(), file)
    assert torch.equal(_outputs(original, file, 224), _outputs(original, tmp_path / "out.pth", 224))


@pytest.mark.slow
def test_a_trunk_with_other_names_than_its_library(tmp_path: Path) -> None:
    config = [*RESNET, "config.MODEL.TRUNK.NAME=alexnet"]
    original = torchvision.models.alexnet()
    file = _library(original, tmp_path / "in.pth")
    made_by = ("--skip=classifier.", "--made-by=torchvision:alexnet")
    _convert(config, file, "sslengine", tmp_path / "s.torch", *made_by)
    _convert(config, tmp_path / "s.torch", "torchvision:alexnet", tmp_path / "out.pth")
    written = torch.load(tmp_path / "out.pth", weights_only=True)
    assert all(torch.equal(written[name], original.state_dict()[name]) for name in written)


def test_heads_travel_where_the_file_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _library(torchvision.models.resnet18(), tmp_path / "in.pth")
    size = f"--image-size={SIDE}"
    _convert(RESNET + HEAD, file, "vissl", tmp_path / "trunk.torch", "--skip=fc.", size)
    assert "the trunk alone" in capsys.readouterr().out
    content = torch.load(tmp_path / "trunk.torch", weights_only=True)
    model: dict[str, Any] = content["classy_state_dict"]["base_model"]["model"]
    assert model["heads"] == {}
    heads = build_model(read(resolve(RESNET + HEAD).config, ModelOptions)).heads.state_dict()
    model["heads"] = heads
    torch.save(content, tmp_path / "with.torch")
    _convert(RESNET + HEAD, tmp_path / "with.torch", "sslengine", tmp_path / "s.torch", size)
    assert "the trunk and the heads" in capsys.readouterr().out
    written = torch.load(tmp_path / "s.torch", weights_only=True)
    kept = written["classy_state_dict"]["base_model"]["model"]["heads"]
    assert all(torch.equal(kept[name], value) for name, value in heads.items())


# ---- what cannot be done


def _error(*arguments: Any) -> str:
    with pytest.raises(SSLEngineError) as error:
        _convert(*arguments)
    return str(error.value)


@pytest.mark.slow
def test_what_cannot_be_mapped_is_named(tmp_path: Path) -> None:
    file, out = _library(torchvision.models.resnet18(), tmp_path / "in.pth"), tmp_path / "out.pth"
    assert "trunk.fc.bias, trunk.fc.weight" in _error(RESNET, file, "vissl", out)
    told = _error(RESNET, file, "torchvision:resnet34", out, "--skip=fc.")
    assert "torchvision:resnet34 is another network: layer1.2.bn1.bias is missing" in told
    alexnet = [*RESNET, "config.MODEL.TRUNK.NAME=alexnet"]
    its = _library(torchvision.models.alexnet(num_classes=2), tmp_path / "alexnet.pth")
    told = _error(alexnet, its, "vissl", out, "--skip=classifier.", "--image-size=8")
    assert told.startswith("--image-size: the network takes no images of 8 pixels: ")
    its.unlink()
    told = _error(VIT, file, "vissl", out, "--skip=fc.")
    assert "missing: trunk.blocks.0.attn.proj.bias" in told
    told = _error(RESNET, file, "timm:resnet81", out, "--skip=fc.")
    assert told.startswith("--to: timm has no 'resnet81'. Did you mean 'resnet18'")
    assert "--skip" not in told
    told = _error(RESNET, file, "vissl", out, "--made-by=torchvision:resnet81")
    assert told.startswith("--made-by: torchvision has no 'resnet81'. Did you mean 'resnet18'")
    told = _error(RESNET, tmp_path / "on.pth", "vissl", out)
    assert told.startswith(f"--from {tmp_path / 'on.pth'}: it is not there: ")
    told = _error(RESNET, file, "vissl", tmp_path / "new" / "out.pth", "--skip=fc.")
    assert told == f"--out {tmp_path}/new/out.pth: there is no folder {tmp_path}/new."
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_an_architecture_with_the_same_names_and_other_outputs(tmp_path: Path) -> None:
    """ResNet v1.5 has the stride in another convolution; every shape fits."""
    model = torchvision.models.resnet50()
    model.layer2[0].conv1.stride, model.layer2[0].conv2.stride = (2, 2), (1, 1)
    file = _library(model, tmp_path / "in.pth")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchvision.models.get_model", lambda name, num_classes: model)
        model.fc = nn.Linear(2048, MARK)
        told = _error(RESNET[:1], file, "vissl", tmp_path / "out.torch",
                      "--skip=fc.", "--made-by=torchvision:resnet50", f"--image-size={SIDE}")  # fmt: skip
    assert "the outputs differ" in told
    assert not (tmp_path / "out.torch").exists()


@pytest.mark.parametrize("to", ["vissl", "timm:resnet18"])
def test_a_part_of_the_network_cannot_be_left_out(tmp_path: Path, to: str) -> None:
    """It would be written with random numbers, and equal to itself."""
    state = torchvision.models.resnet18().state_dict()
    file, out = tmp_path / "in.pth", tmp_path / "out.pth"
    for given in (state, {name: each for name, each in state.items() if "layer4" not in name}):
        torch.save(given, file)
        told = _error(RESNET, file, to, out, "--skip=fc.", "--skip=layer4.1.conv2")
        assert "layer4" in told
    torch.save(state, file)
    told = _error(RESNET, file, to, out, "--skip=fc.", "--skip=layer4.1.conv2")
    assert "asked to leave out trunk.layer4.1.conv2.weight, which the network has: its n" in told
    assert not out.exists()


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "googlenet"])
def test_a_network_whose_classifier_has_hidden_layers(tmp_path: Path, name: str) -> None:
    config = ["config=pretrain/simsiam/simsiam_1node_resnet50", "config.MODEL.TRUNK.NAME=torchvision",
              f"config.MODEL.TRUNK.TORCHVISION.model={name}", "config.MODEL.HEAD.PARAMS=[]"]  # fmt: skip
    more = {"init_weights": True} if name == "googlenet" else {}
    file = _library(torchvision.models.get_model(name, **more), tmp_path / "in.pth")
    skipped = ("--skip=fc.", "--skip=aux") if name == "googlenet" else ("--skip=classifier.3",)
    _convert(config, file, f"torchvision:{name}", tmp_path / "out.pth", *skipped)
    written, given = (torch.load(each, weights_only=True) for each in (tmp_path / "out.pth", file))
    assert all(torch.equal(each, given[name]) for name, each in written.items())
    assert len(written) == len(
        [n for n in given if not n.startswith(("fc.", "aux", "classifier.3"))]
    )


def test_a_network_of_grey_images(tmp_path: Path) -> None:
    file, out = tmp_path / "in.pth", tmp_path / "out.pth"
    torch.save(timm.create_model("resnet10t", in_chans=1, num_classes=0).state_dict(), file)
    config = [*RESNET[:1], "config.MODEL.TRUNK.NAME=timm", "config.MODEL.TRUNK.TIMM.model=resnet10t",
              "config.MODEL.INPUT_CHANNELS=1", "config.MODEL.HEAD.PARAMS=[]"]  # fmt: skip
    _convert(config, file, "timm:resnet10t", out, f"--image-size={SIDE}")
    written, given = (torch.load(each, weights_only=True) for each in (out, file))
    assert torch.equal(written["conv1.0.weight"], given["conv1.0.weight"])


def test_outputs_that_are_all_alike_prove_nothing(tmp_path: Path) -> None:
    model = torchvision.models.resnet18()
    model.layer4[1].bn2.bias.data.fill_(-1e9)
    file = _library(model, tmp_path / "in.pth")
    told = _error(RESNET, file, "timm:resnet18", tmp_path / "out.pth", "--skip=fc.")
    assert "so outputs cannot be compared" in told
