from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sslengine.models.heads.weight_norm_linear import WeightNormLinear


def test_products_with_directions_of_given_lengths() -> None:
    torch.manual_seed(0)
    layer = WeightNormLinear(3, 5)
    with torch.no_grad():
        layer.weight_g.uniform_(0.5, 2.0)
    x = torch.randn(4, 3)
    out = layer(x)
    for n in range(4):
        for k in range(5):
            v = layer.weight_v[k]
            expected = layer.weight_g[k, 0] * (x[n] @ v) / v.norm()
            torch.testing.assert_close(out[n, k], expected)


def test_as_torchs_own_with_its_names() -> None:
    torch.manual_seed(0)
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(3, 5, bias=False))
    ours = WeightNormLinear(3, 5)
    g, v = theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1
    ours.load_state_dict({"weight_g": g, "weight_v": v})
    x = torch.randn(4, 3)
    (ours(x) ** 2).sum().backward()
    (theirs(x) ** 2).sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.weight_g.grad, g.grad)
    torch.testing.assert_close(ours.weight_v.grad, v.grad)


@pytest.mark.parametrize("learn", [True, False])
def test_lengths_start_at_one_and_are_learnt_if_wanted(learn: bool) -> None:
    layer = WeightNormLinear(3, 5, learn_lengths=learn)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(5))
    layer(torch.ones(1, 3)).sum().backward()
    assert (layer.weight_g.grad is not None) is learn
    assert layer.weight_v.grad is not None


def test_it_can_be_copied_after_a_forward_and_says_its_size() -> None:
    layer = WeightNormLinear(3, 5)
    layer(torch.ones(1, 3))
    copied = copy.deepcopy(layer)
    assert copied.weight_v.data_ptr() != layer.weight_v.data_ptr()
    assert torch.equal(copied.weight_v, layer.weight_v)
    assert repr(layer) == "WeightNormLinear(in_features=3, out_features=5)"
