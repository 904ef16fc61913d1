"""Heads that judge frozen features, against the formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.heads.build import build_module

WIDTH, OUTPUTS = 12, 5


def _head(name: str, **arguments: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_module([name, arguments], "here")


def _tokens() -> Tensor:
    return torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_of_one_query(heads: int) -> None:
    head = _head("attentive_probe", in_dim=WIDTH, out_dim=OUTPUTS, heads=heads)
    tokens, size = _tokens(), WIDTH // heads
    weight, bias = head.key_value.weight, head.key_value.bias
    pooled = torch.zeros(len(tokens), WIDTH)
    for row, sample in enumerate(tokens):
        for number in range(heads):
            part = slice(number * size, (number + 1) * size)
            keys = sample @ weight[:WIDTH][part].T + bias[:WIDTH][part]
            values = sample @ weight[WIDTH:][part].T + bias[WIDTH:][part]
            scores = torch.exp(keys @ head.query[part] / math.sqrt(size))
            pooled[row, part] = (scores / scores.sum()) @ values
    expected = pooled @ head.linear.weight.T + head.linear.bias
    torch.testing.assert_close(head(tokens), expected, rtol=1e-5, atol=1e-6)


def test_a_map_is_tokens() -> None:
    head = _head("attentive_probe", in_dim=WIDTH, out_dim=OUTPUTS)
    maps = torch.randn(3, WIDTH, 2, 4)
    torch.testing.assert_close(head(maps), head(maps.flatten(2).transpose(1, 2)))


def test_a_linear_probe_begins_small() -> None:
    head = _head("linear_probe", dims=[4000, 10])
    assert head.linear.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not head.linear.bias.any()


def test_norms() -> None:
    x = 3 + 2 * torch.randn(64, WIDTH)
    batch = _head("linear_probe", dims=[WIDTH, OUTPUTS], norm="batch")
    assert not list(batch.norm.parameters())
    scaled = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-6)
    torch.testing.assert_close(batch(x), scaled @ batch.linear.weight.T, rtol=1e-4, atol=1e-5)
    layer = _head("linear_probe", dims=[WIDTH, OUTPUTS], norm="layer")
    assert isinstance(layer.norm, torch.nn.LayerNorm)


def test_float32_under_autocast() -> None:
    head = _head("linear_probe", dims=[WIDTH, OUTPUTS])
    x = torch.randn(4, WIDTH)
    expected = head(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), expected)
        assert head(x.bfloat16()).dtype == torch.float32


def test_after_it_diverged_it_has_no_gradient() -> None:
    head = _head("linear_probe", dims=[WIDTH, OUTPUTS])
    with torch.no_grad():
        head.linear.weight[0, 0] = math.inf
    output = head(torch.randn(4, WIDTH))
    assert not output.any()
    output.sum().backward()
    assert not head.linear.bias.grad.any()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("linear_probe", {"dims": [4]}, "dims: expected two widths"),
        ("attentive_probe", {"in_dim": 8, "out_dim": 2, "heads": 3}, "8 values cannot be shared"),
    ],
)
def test_what_cannot_be(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _head(name, **arguments)
