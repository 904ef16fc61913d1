from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.heads.mlp import MLP


def kinds(head: MLP) -> list[str]:
    return [type(layer).__name__ for layer in head.clf]


def test_one_layer_is_a_matrix_and_a_bias() -> None:
    head = MLP([3, 2]).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    state = head.state_dict()
    assert list(state) == ["clf.0.weight", "clf.0.bias"]
    torch.testing.assert_close(head(x), x @ state["clf.0.weight"].T + state["clf.0.bias"])


def test_layers_and_their_order() -> None:
    head = MLP([3, 4, 2], use_bn=True, use_relu=True, use_dropout=True)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"]
    head = MLP([3, 4, 2], use_bn=True, use_relu=True, skip_last_layer_relu_bn=False)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU"]
    assert kinds(MLP([3, 4], use_bn=True, use_relu=True, use_dropout=True)) == ["Linear"]
    bare = MLP([3, 4, 2], use_bias=False)
    assert not any(layer.bias is not None for layer in bare.clf)


def test_two_layers_by_formula() -> None:
    head = MLP([3, 4, 2], use_bn=True, use_relu=True).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    first, second = head.clf[0], head.clf[3]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    hidden = x @ first.weight.T + first.bias
    normed = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    expected = normed.clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head(x[:, :, None, None]), expected)


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 2, 2), (5, 3, 1), (3,)])
def test_features_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^config\.MODEL\.HEAD\.PARAMS: "):
        MLP([3, 2])(torch.zeros(shape))


@pytest.mark.parametrize("dims", [[], [128]])
def test_too_few_dims(dims: list[int]) -> None:
    with pytest.raises(ConfigError, match="dims: expected two or more widths"):
        MLP(dims)


def test_gradients_pass_the_in_place_relu() -> None:
    def loss(head: MLP, x: Tensor) -> Any:
        return head(x).square().sum()

    head = MLP([3, 4, 2], use_relu=True).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: loss(head, each), (x,))
