"""Frozen networks: of a run and of timm, in a method's state, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from sslengine.config.sections import section_problems
from sslengine.engines.train import train_task
from sslengine.errors import CheckpointError, ConfigError, SSLEngineError
from sslengine.methods.step import Step
from sslengine.models.frozen import FrozenNetwork, FrozenOptions, digest
from tests.engines.runs import make_run

WHERE = "config.LOSS.mine.teacher"
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def frozen(heads: bool = False, features: tuple[str, ...] = (), **options: Any) -> FrozenNetwork:
    made = FrozenNetwork(FrozenOptions(**options), WHERE, heads, features)
    made.load(nn.Identity())
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights that timm wrote."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("timm") / "weights.pth"
    torch.save(timm.create_model("test_resnet", num_classes=7).state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("run")
    few = {"DATA__TRAIN__DATA_LIMIT": 4, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2}
    task, _ = train_task(make_run(folder, OPTIMIZER__num_epochs=1, **few))
    return folder, task.base_model


def outputs(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(images)


def test_a_file_of_timms_is_read_into_timms_network(file: str) -> None:
    network = timm.create_model("test_resnet", num_classes=7)
    network.load_state_dict(torch.load(file))
    network.reset_classifier(0)
    found = frozen(weights=file, timm="test_resnet")(IMAGES, Step.alone())
    torch.testing.assert_close(found, outputs(network, IMAGES))


def test_a_run_gives_its_network_and_heads(run: tuple[Path, Any]) -> None:
    folder, model = run
    state = torch.get_rng_state()
    for heads in (False, True):
        found = frozen(heads, weights=str(folder))(IMAGES, Step.alone())
        wanted = outputs(model, IMAGES)[0] if heads else model.trunk.eval()(IMAGES)[0]
        torch.testing.assert_close(found, wanted)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_stays_in_eval_mode_without_gradients_and_is_stored_as_a_hash(file: str) -> None:
    method = nn.ModuleDict({"teacher": frozen(weights=file, timm="test_resnet")}).train()
    before = digest(method["teacher"].network)
    assert not method["teacher"](IMAGES, Step.alone()).requires_grad
    assert digest(method["teacher"].network) == before  # batch norms
    assert not any(each.requires_grad for each in method.parameters())
    assert not any(each.training for each in method["teacher"].modules())
    state = method.state_dict()
    assert bytes(state["teacher.sha256"].tolist()) == before
    assert [*state] == ["teacher.sha256"]
    method.load_state_dict(state)
    assert digest(method["teacher"].network) == before
    state["teacher.sha256"] = 255 - state["teacher.sha256"]
    with pytest.raises(CheckpointError, match="has other weights than the teacher of the run"):
        method.load_state_dict(state)


def test_before_a_launch_weights_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_text("no weights")
    with torch.device("meta"):
        made = frozen(weights=str(path), timm="test_resnet")
        assert made(IMAGES.to("meta"), Step.alone()).shape == (4, 96)
    with pytest.raises(SSLEngineError, match="teacher: "):
        frozen(weights=str(path), timm="test_resnet")


def on_bands(channels: int, **options: Any) -> FrozenNetwork:
    """In a run of images with so many channels."""
    model = nn.Module()
    model.trunk = nn.Module()
    model.trunk.in_chans = channels
    made = FrozenNetwork(FrozenOptions(**options), WHERE)
    made.load(model)
    return made


def test_a_run_on_other_channels_is_refused_before_a_launch(run: tuple[Path, Any]) -> None:
    wanted = f"{WHERE}: weights: .* trained on images of 3 channels, and those of this run have 4"
    with torch.device("meta"), pytest.raises(ConfigError, match=wanted):
        on_bands(4, weights=str(run[0]))


def test_a_file_is_adapted_to_other_channels_as_timm_adapts_its_own(file: str) -> None:
    found = on_bands(4, weights=file, timm="test_resnet").network.trunk.state_dict()
    given = torch.load(file)["conv1.0.weight"]
    expected = timm.models.adapt_input_conv(4, given)
    torch.testing.assert_close(found["conv1.0.weight"], expected)


def test_what_is_refused(file: str, run: tuple[Path, Any], tmp_path: Path) -> None:
    for options, message in (
        ({}, "weights: expected the folder of a trained run"),
        ({"weights": str(tmp_path / "none")}, "weights: there is no file or folder"),
        ({"weights": file}, "is not the folder of a run.*timm to its name"),
        ({"weights": file, "timm": "tset_resnet"}, "did you mean 'test_resnet'|test_resnet"),
        ({"weights": file, "timm": "test_resnet", "heads": True}, "this network has no heads"),
        ({"weights": file, "timm": "test_resnet", "features": ("layer9",)}, "layer9"),
    ):
        with pytest.raises(ConfigError, match=f"{WHERE}.*{message}"):
            frozen(**options)
    torch.save(timm.create_model("test_resnet"), tmp_path / "module.pth")
    torch.save({"odd": torch.zeros(2)}, tmp_path / "odd.pth")
    for name, message in (("module", "save the tensors alone"), ("odd", "does not fit the model")):
        with pytest.raises(CheckpointError, match=f"{WHERE}: weights: .*{message}") as told:
            frozen(weights=str(tmp_path / f"{name}.pth"), timm="test_resnet")
        assert "WEIGHTS_INIT" not in str(told.value)
        assert "SKIP_LAYERS" not in str(told.value)
    assert [
        *section_problems(FrozenOptions(network="x")),
        *FrozenOptions(arguments={"a": 1}).check(),
    ] == [
        "network: expected one of auto, student, teacher, got 'x'.",
        "timm: `arguments` is set, but no network is named. Name one; or, for the network of a run, "
        "set arguments.a=null.",
    ]
