from __future__ import annotations

import pytest
import torch

from sslengine.errors import ConfigError
from sslengine.models.heads.eval_mlp import EvalMLP


def test_a_map_by_formula() -> None:
    head = EvalMLP(in_channels=2, dims=[8, 3]).double()
    x = 5 + 2 * torch.randn(6, 2, 2, 2, dtype=torch.float64)
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = x.var((0, 2, 3), correction=0, keepdim=True)
    normed = ((x - mean) / (variance + 1e-5).sqrt()).reshape(6, 8)
    weight, bias = head.clf.clf[0].weight, head.clf.clf[0].bias
    torch.testing.assert_close(head(x), normed @ weight.T + bias)


def test_a_vector_is_a_map_of_one_pixel() -> None:
    head = EvalMLP(in_channels=4, dims=[4, 3])
    x = torch.randn(6, 4)
    torch.testing.assert_close(head(x), head(x[:, :, None, None]))


def test_names_are_those_of_vissl() -> None:
    names = set(EvalMLP(2, [2, 3]).state_dict())
    assert {"channel_bn.weight", "channel_bn.running_mean", "clf.clf.0.weight"} <= names


def test_layers_in_front_of_the_last_may_have_norm_and_relu() -> None:
    head = EvalMLP(2, [2, 4, 3], use_bn=True, use_relu=True)
    kinds = [type(layer).__name__ for layer in head.clf.clf]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear"]


def test_features_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match="in_channels 2 got features of shape"):
        EvalMLP(2, [8, 3])(torch.zeros(5, 3, 2, 2))
    with pytest.raises(ConfigError, match="it takes N x 8"):
        EvalMLP(2, [8, 3])(torch.zeros(5, 2, 3, 3))
