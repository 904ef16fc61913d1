"""Networks of timm and torchvision as trunks: the same outputs, features and widths as theirs."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from sslengine.errors import CheckpointError, ConfigError
from sslengine.models.build import build_model, build_trunk
from sslengine.models.model import Model
from sslengine.models.options import (
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    WeightsInitOptions,
)
from sslengine.models.trunks.library import LibraryTrunk
from sslengine.models.trunks.library_options import TimmOptions, TorchvisionOptions
from sslengine.models.weights.load import init_weights

from . import checks

# The network, the side of images, arguments that make it small.
TIMM: list[tuple[str, int, dict[str, Any]]] = [
    ("resnet10t", 32, {}),
    ("convnext_atto", 32, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
    ("efficientnet_lite0", 32, {}),
    ("mobilenetv3_small_050", 32, {}),
    ("regnetx_002", 32, {}),
    ("densenet121", 32, {"block_config": (1, 1, 1, 1)}),
    ("vit_tiny_patch16_224", 32, {"img_size": 32, "depth": 2}),
    ("swin_tiny_patch4_window7_224", 56, {"img_size": 56, "embed_dim": 24, "depths": (1, 1, 1, 1)}),
    ("edgenext_xx_small", 64, {}),
    ("xcit_nano_12_p16_224", 32, {"depth": 1, "img_size": 32}),
]
TORCHVISION: list[tuple[str, int, dict[str, Any]]] = [
    ("resnet18", 32, {}),
    ("googlenet", 32, {"init_weights": True}),  # the file has its other two classifiers
    ("squeezenet1_1", 64, {}),
    ("shufflenet_v2_x0_5", 32, {}),
    ("mnasnet0_5", 32, {}),
    ("mobilenet_v2", 32, {"width_mult": 0.25}),
    ("mobilenet_v3_small", 32, {}),
    ("regnet_y_400mf", 32, {}),
    ("efficientnet_b0", 32, {}),
    ("densenet121", 32, {}),
]
OPTIONS = {"timm": TimmOptions, "torchvision": TorchvisionOptions}


def options(library: str, name: str, arguments: dict[str, Any], **more: Any) -> ModelOptions:
    chosen = OPTIONS[library](model=name, arguments=arguments)
    return ModelOptions(TRUNK=TrunkOptions(NAME=library, **{library.upper(): chosen}), **more)


def trunk(library: str, name: str, **arguments: Any) -> LibraryTrunk:
    torch.manual_seed(0)
    made = build_trunk(options(library, name, arguments))
    assert isinstance(made, LibraryTrunk)
    return made


def started_from(network: nn.Module, folder: Path, *given: Any) -> LibraryTrunk:
    """A trunk with the network's weights, out of a file as the library writes it."""
    path = folder / "network.pth"
    torch.save(_as_released(network), path)
    asked = options(*given, WEIGHTS_INIT=WeightsInitOptions(PARAMS_FILE=str(path)))
    model = build_model(asked)
    assert isinstance(model, Model)
    init_weights(model, asked)
    assert isinstance(model.trunk, LibraryTrunk)
    return model.trunk.eval()


def _as_released(network: nn.Module) -> dict[str, Tensor]:
    """torchvision's files of DenseNets say norm.1 where the network says norm1."""
    if not isinstance(network, torchvision.models.DenseNet):
        return network.state_dict()
    return {
        re.sub(r"(layer\d+\.[a-z]+)([12])", r"\1.\2", name): tensor
        for name, tensor in network.state_dict().items()
    }


def heard(network: nn.Module, x: Tensor, *names: str) -> dict[str, Tensor]:
    """What submodules give in a forward pass."""
    found: dict[str, Tensor] = {}
    for name in names:
        network.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: found.update({name: output.clone()})
        )
    with torch.no_grad():
        network(x)
    return found


@pytest.mark.parametrize(("name", "side", "arguments"), TIMM, ids=[each[0] for each in TIMM])
def test_outputs_are_those_of_timm(
    name: str, side: int, arguments: dict[str, Any], tmp_path: Path
) -> None:
    library: Any = timm.create_model(name, num_classes=7, **arguments).eval()
    ours = started_from(library, tmp_path, "timm", name, arguments)
    x = torch.randn(2, 3, side, side)
    levels = [each["module"] for each in library.feature_info]
    assert [*ours.feature_names[: len(levels)]] == levels
    theirs = heard(library, x, *levels)
    with torch.no_grad():
        *maps, final = ours(x, [*levels, "flatten"])
        pooled = library.forward_head(library.forward_features(x), pre_logits=True)
        torch.testing.assert_close(final, pooled)
        torch.testing.assert_close(ours(x)[0], final)
        # Alone, where the network is left as soon as it is found.
        torch.testing.assert_close(ours(x, [levels[0]])[0], maps[0])
    for level, ours_map, info in zip(levels, maps, library.feature_info, strict=True):
        assert ours_map.shape[:2] == (2, info["num_chs"])
        torch.testing.assert_close(ours_map, _as_a_map(theirs[level], ours_map), msg=level)


def _as_a_map(given: Tensor, like: Tensor) -> Tensor:
    """Tokens, and maps with channels last, as N x C x H x W."""
    if given.ndim == 3:
        patches = given[:, -like.shape[-1] * like.shape[-2] :]
        return patches.mT.reshape(like.shape)
    return given if given.shape == like.shape else given.permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "side", "arguments"), TORCHVISION, ids=[each[0] for each in TORCHVISION]
)
def test_outputs_are_those_of_torchvision(
    name: str, side: int, arguments: dict[str, Any], tmp_path: Path
) -> None:
    library = torchvision.models.get_model(name, num_classes=7, **arguments).eval()
    ours = started_from(library, tmp_path, "torchvision", name, arguments)
    x = torch.randn(2, 3, side, side)
    names = ours.feature_names[:-1]
    *_, last = (name for name, each in library.named_modules() if _gives_classes(each))
    given = pooled_before(library.get_submodule(last))
    theirs = heard(library, x, *names)
    with torch.no_grad():
        *maps, final = ours(x, ours.feature_names)
    for each, ours_map in zip(names, maps, strict=True):
        torch.testing.assert_close(ours_map, theirs[each], msg=each)
    torch.testing.assert_close(final, given[0])


def _gives_classes(layer: nn.Module) -> bool:
    return 7 in (getattr(layer, "out_features", 0), getattr(layer, "out_channels", 0))


def pooled_before(last: nn.Module) -> list[Tensor]:
    """What the last layer gets, once it has run; SqueezeNet pools behind it."""
    given: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        given.append(inputs[0].relu().mean((2, 3)) if inputs[0].ndim == 4 else inputs[0].clone())

    last.register_forward_pre_hook(keep)
    return given


SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "timm": ("test_byobnet", {"drop_path_rate": 0.3}),
    "torchvision": ("shufflenet_v2_x0_5", {}),
}


@pytest.mark.parametrize("library", SMALL)
def test_blocks_are_recomputed_and_what_has_none_says_so(library: str) -> None:
    name, arguments = SMALL[library]
    ours = trunk(library, name, **arguments)
    ours.checkpoint_activations()
    inside = {"timm": "stages.1.0.conv1_1x1.conv", "torchvision": "stage2.1.branch2.0"}
    assert checks.recomputes(ours, ours.get_submodule(inside[library]))
    with torch.device("meta"):
        other = trunk("torchvision", "vgg11")
    with pytest.raises(ConfigError, match="VGG cannot recompute"):
        other.checkpoint_activations()


def test_first_filters_for_other_images_are_as_large_as_for_three_channels() -> None:
    asked = options("torchvision", "resnet18", {}, INPUT_CHANNELS=12)
    torch.manual_seed(0)
    weight = build_trunk(asked).get_parameter("conv1.weight")
    assert tuple(weight.shape) == (64, 12, 7, 7)
    # By fan-out: sqrt(2 / (64 * 49)) for three channels, and a quarter of the variance for twelve.
    assert float(weight.detach().std()) == pytest.approx((2 / (64 * 49) / 4) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("library", "feature", "nearest"),
    [("timm", "stagess.0", "stages.0"), ("torchvision", "conv5.O", "conv5.0"),
     ("torchvision", "avgpool", "")],
)  # fmt: skip
def test_an_unknown_feature_is_an_error_with_the_nearest(
    library: str, feature: str, nearest: str
) -> None:
    name, arguments = SMALL[library]
    with pytest.raises(ConfigError, match=rf"no feature {feature!r}.*{nearest}"):
        trunk(library, name, **arguments).check_features([feature], "config.MODEL.X")


@pytest.mark.parametrize("library", SMALL)
def test_arguments_that_the_library_refuses(library: str) -> None:
    name, _ = SMALL[library]
    with pytest.raises(ConfigError, match=rf"TRUNK\.{library.upper()}\.arguments.*nonsense"):
        trunk(library, name, nonsense=1)


@pytest.mark.parametrize(
    ("library", "name"),
    [*(("timm", each) for each in ("pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path",
                                   "cache_dir", "pretrained_filter_fn")),
     ("torchvision", "weights"), ("torchvision", "pretrained")],
)  # fmt: skip
def test_arguments_that_would_load_weights(library: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"TRUNK\.{library.upper()}\.arguments\.{name}: set"):
        trunk(library, SMALL[library][0], **{name: "x"})


def test_images_of_another_size_than_the_network_takes() -> None:
    ours = trunk("timm", "test_vit")
    with pytest.raises(ConfigError, match=r"TRUNK\.TIMM: .* \(2, 3, 33, 33\): .*Resize"):
        ours(torch.randn(2, 3, 33, 33))


# ---- the libraries' own weights, by name


@pytest.mark.parametrize("library", SMALL)
def test_pretrained_weights_by_name(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, arguments = SMALL[library]
    asked = options(library, name, arguments, INPUT_CHANNELS=4)
    chosen = asked.TRUNK.library()
    assert chosen is not None
    chosen.pretrained = True
    torch.manual_seed(3)
    fetched: dict[str, Any] = {}
    place = {"timm": (timm, "create_model"), "torchvision": (torchvision.models, "get_model")}
    owner, function = place[library]
    make = getattr(owner, function)

    def with_weights(*given: Any, **more: Any) -> Any:
        """As with a network: what is downloaded are the numbers of `fetched`."""
        wanted = more.pop("pretrained", None) or more.pop("weights", None)
        network = make(*given, **more)
        if wanted:
            fetched.update(copy.deepcopy(network.state_dict()))
        return network

    monkeypatch.setattr(owner, function, with_weights)
    model = build_model(asked)
    drawn = torch.get_rng_state()
    assert isinstance(model, Model)
    assert not fetched  # nothing is fetched to build it
    loaded = init_weights(model, asked)
    assert loaded.source == f"{library}'s weights of {name}"
    assert torch.equal(torch.get_rng_state(), drawn)
    for key, tensor in model.trunk.state_dict().items():
        if fetched[key].shape == tensor.shape:
            assert torch.equal(tensor, fetched[key]), key
        else:  # torchvision's first filters, in turn
            expected = fetched[key][:, [0, 1, 2, 0]] * (3 / 4)
            torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
@pytest.mark.parametrize(
    ("pretrained", "arguments"), [(True, {}), (False, {}), (True, {"transform_input": False})]
)
def test_pretrained_inception_gets_images_as_it_was_trained_with(
    name: str, pretrained: bool, arguments: dict[str, Any]
) -> None:
    """From -1 to 1; DATA gives them with ImageNet's mean 0 and standard deviation 1."""
    asked = options("torchvision", name, arguments)
    asked.TRUNK.TORCHVISION.pretrained = pretrained
    with torch.device("meta"):
        ours: Any = build_trunk(asked)
    images = torch.rand(2, 3, 4, 4)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    given = (images - mean) / deviation
    expected = 2 * images - 1 if pretrained and not arguments else given
    torch.testing.assert_close(ours._transform_input(given), expected)


class _Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("mark",)


def test_a_librarys_file_that_holds_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision asks torch.load for any pickle, and checks no hash of what is there already."""
    name, arguments = SMALL["torchvision"]
    asked = options("torchvision", name, arguments, HEAD=HeadOptions())
    model = build_model(asked)
    url = torchvision.models.get_model_weights(name).DEFAULT.url
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    torch.save(_Hostile(), tmp_path / "checkpoints" / url.rpartition("/")[2])
    with pytest.raises(CheckpointError, match=r"TORCHVISION\.pretrained: "):
        init_weights(model, asked)
    assert not Path("mark").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("library", SMALL)
def test_without_a_network_pretrained_weights_are_an_error(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, arguments = SMALL[library]
    asked = options(library, name, arguments, HEAD=HeadOptions())
    model = build_model(asked)

    def fails(self: Any, in_chans: int) -> Any:
        raise OSError("Name or service not known")

    assert isinstance(model, Model)
    monkeypatch.setattr(type(model.trunk), "library_weights", fails)
    with pytest.raises(CheckpointError, match=r"pretrained: .*Name or service.*\n.*PARAMS_FILE"):
        init_weights(model, asked)
