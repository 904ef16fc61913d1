from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import hardswish

from sslengine.contrib.trunks.mobilenet_v3_heads import (
    MobileNetHead,
    MobileNetV3Head,
    TimmMobileNetV3Head,
)
from sslengine.errors import ConfigError
from sslengine.models.heads.build import build_heads
from sslengine.models.options import HeadOptions

BOTH = pytest.mark.parametrize("make", [MobileNetV3Head, TimmMobileNetV3Head])


@BOTH
def test_by_formula(make: type[MobileNetHead]) -> None:
    head = make(6, 5, 3, drop_out=0.0, with_bn=True).double().train()
    x = 3 + 2 * torch.randn(8, 6, dtype=torch.float64)
    normed = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    state = head.state_dict()
    first = normed @ state["classifier.0.weight"].flatten(1).T + state["classifier.0.bias"]
    last = head.classifier[-1]
    expected = hardswish(first) @ last.weight.T + last.bias
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head(x[:, :, None, None]), expected)


def test_names_are_those_of_vissl() -> None:
    weights = {"classifier.0.weight": (5, 6), "classifier.3.weight": (3, 5)}
    shapes = {name: tuple(each.shape) for name, each in MobileNetV3Head(6, 5, 3).named_parameters()}
    assert shapes == {**weights, "classifier.0.bias": (5,), "classifier.3.bias": (3,)}
    names = set(TimmMobileNetV3Head(6, 5, 3, with_bn=True).state_dict())
    assert {"classifier.0.weight", "classifier.4.bias", "channel_bn.running_mean"} <= names
    assert TimmMobileNetV3Head(6, 5, 3).classifier[0].weight.shape == (5, 6, 1, 1)


@BOTH
def test_defaults(make: type[MobileNetHead]) -> None:
    head = make()
    assert head(torch.randn(2, 960)).shape == (2, 1000)
    assert not isinstance(head.channel_bn, nn.BatchNorm2d)
    dropouts = [each.p for each in head.modules() if isinstance(each, nn.Dropout)]
    assert dropouts == [0.2]
    last = head.classifier[-1]
    assert float(last.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert not last.bias.detach().any()


def test_it_is_a_head_of_the_config() -> None:
    params = [
        [name, {"num_classes": 7}] for name in ("mobilenet_v3_head", "mobilenet_v3_head_timm")
    ]
    kinds = [type(head) for head in build_heads(HeadOptions(PARAMS=params))]
    assert kinds == [MobileNetV3Head, TimmMobileNetV3Head]


@BOTH
@pytest.mark.parametrize("shape", [(2, 5), (2, 6, 2, 2), (2, 6, 1)])
def test_features_of_another_shape_are_refused(
    make: type[MobileNetHead], shape: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"in_channels 6 got features of shape .* N x 6"):
        make(6, 5, 3)(torch.randn(shape))
