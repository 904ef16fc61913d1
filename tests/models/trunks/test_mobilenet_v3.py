from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.mobilenetv3 import mobilenetv3_large_100
from torch import Tensor
from torch.nn.functional import normalize
from torchvision.models.mobilenetv3 import mobilenet_v3_large

from sslengine.contrib.trunks.mobilenet_v3 import TimmMobileNetV3, TorchvisionMobileNetV3
from sslengine.contrib.trunks.mobilenet_v3_heads import MobileNetV3Head, TimmMobileNetV3Head
from sslengine.errors import ConfigError
from sslengine.models.trunks.options import MobileNetOptions
from sslengine.models.vissl_names import from_vissl, to_vissl

from . import checks

Make = Callable[..., TimmMobileNetV3 | TorchvisionMobileNetV3]
BOTH = pytest.mark.parametrize("make", [TorchvisionMobileNetV3, TimmMobileNetV3])


def trunk(make: Make, **options: Any) -> TimmMobileNetV3 | TorchvisionMobileNetV3:
    torch.manual_seed(0)
    return make(MobileNetOptions(**options))


def with_statistics(
    model: TimmMobileNetV3 | TorchvisionMobileNetV3,
) -> TimmMobileNetV3 | TorchvisionMobileNetV3:
    """Of running averages that are not at their first values."""
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))
    return model.eval()


def of_the_library(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """VISSL's names are the library's, inside a module."""
    return {prefix + name.removeprefix("model."): tensor for name, tensor in state.items()}


def test_with_its_head_it_is_torchvisions() -> None:
    model, head = with_statistics(trunk(TorchvisionMobileNetV3)), MobileNetV3Head().eval()
    library = mobilenet_v3_large().eval()
    library.load_state_dict(of_the_library(to_vissl(model), "") | head.state_dict())
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(head(model(x)[0]), library(x))
        torch.testing.assert_close(model(x, ["trunk"])[0], library.features(x))


def test_with_its_head_it_is_timms() -> None:
    model, head = with_statistics(trunk(TimmMobileNetV3)), TimmMobileNetV3Head().eval()
    names = {"classifier.0.": "conv_head.", "classifier.4.": "classifier."}
    state = of_the_library(to_vissl(model), "")
    for ours, other in names.items():
        for kind in ("weight", "bias"):
            state[other + kind] = head.state_dict()[ours + kind]
    library = mobilenetv3_large_100().eval()
    library.load_state_dict(state)
    whole = trunk(TimmMobileNetV3, TRUNK_ONLY=False).eval()
    del state["classifier.weight"], state["classifier.bias"]
    whole.load_state_dict(
        from_vissl(whole, {f"model.{name}": each for name, each in state.items()})
    )
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        features = library.forward_features(x)
        before = library.forward_head(features, pre_logits=True)
        torch.testing.assert_close(head(model(x)[0]), library(x))
        torch.testing.assert_close(model(x, ["trunk"])[0], features)
        torch.testing.assert_close(whole(x)[0], before)
        # Without its last convolution, hard swish alone stands behind the pooling.
        library.conv_head = torch.nn.Identity()
        expected = library.forward_head(features, pre_logits=True)
        torch.testing.assert_close(model(x, ["flatten"])[0], expected)


@BOTH
@pytest.mark.parametrize("trunk_only", [True, False])
def test_features(make: Make, trunk_only: bool) -> None:
    if make is TorchvisionMobileNetV3 and not trunk_only:
        with pytest.raises(ConfigError, match=r"MOBILE_NET\.TRUNK_ONLY: .* head mobilenet_v3_head"):
            trunk(make, TRUNK_ONLY=False)
        return
    model = trunk(make, TRUNK_ONLY=trunk_only)
    found = checks.features(model, (64, 32))
    assert tuple(found["trunk"].shape) == (2, 960, 2, 1)
    torch.testing.assert_close(found["trunk_pool"], found["trunk"].mean((2, 3)))
    torch.testing.assert_close(found["trunk_pool_norm"], normalize(found["trunk_pool"]))
    if make is TimmMobileNetV3:
        assert found["flatten"].shape[1] == (960 if trunk_only else 1280)
        torch.testing.assert_close(found["flatten_norm"], normalize(found["flatten"]))
    assert model.feature_names[-1] == ("trunk_pool" if trunk_only else "flatten")


def test_batch_norms() -> None:
    def settings(
        model: TimmMobileNetV3 | TorchvisionMobileNetV3,
    ) -> set[tuple[float, float | None]]:
        norms = (each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d))
        return {(norm.eps, norm.momentum) for norm in norms}

    assert settings(trunk(TorchvisionMobileNetV3)) == {(1e-3, 1e-2)}
    assert settings(trunk(TorchvisionMobileNetV3, TIMM_BN=True)) == {(1e-5, 0.1)}
    assert settings(trunk(TimmMobileNetV3)) == {(1e-5, 0.1)}


@BOTH
def test_vissl_names(make: Make) -> None:
    model = trunk(make)
    checks.names_round_trip(model)
    assert all(name.startswith("model.") for name in to_vissl(model))


@pytest.mark.slow
@BOTH
def test_activation_checkpointing_changes_nothing(make: Make) -> None:
    # As many parts as there are steps.
    checks.checkpointing_changes_nothing(trunk(make), 50)
