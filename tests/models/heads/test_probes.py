"""Heads that judge frozen features, against the formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.build import build_module

WIDTH, OUTPUTS = 12, 5


def _head(name: str, **arguments: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_module([name, arguments], "here")


def _spread(head: torch.nn.Module) -> None:
    """Weights as large as features, since those at the start hardly tell inputs apart."""
    with torch.no_grad():
        for number, weight in enumerate(head.parameters()):
            weight.copy_(torch.sin(torch.arange(weight.numel()) * (0.3 + number)).view_as(weight))


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


def test_a_block_of_cross_attention_as_in_v_jepa() -> None:
    """torch's own attention has the projections; the rest is added by the formula."""
    head = _head("attentive_probe", in_dim=WIDTH, out_dim=OUTPUTS, heads=3, form="block")
    block, tokens = head.block, _tokens()
    _spread(head)
    attention = torch.nn.MultiheadAttention(WIDTH, 3, batch_first=True)
    layers = (block.query, head.key_value)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([each.weight for each in layers]))
        attention.in_proj_bias.copy_(torch.cat([each.bias for each in layers]))
    attention.out_proj = block.output
    query = head.query.expand(3, 1, -1)
    seen = block.norm_tokens(tokens)
    found = (query + attention(query, seen, seen)[0])[:, 0]
    inner = block.norm(found) @ block.mlp[0].weight.T + block.mlp[0].bias
    inner = inner / 2 * (1 + torch.erf(inner / math.sqrt(2)))
    found = found + inner @ block.mlp[2].weight.T + block.mlp[2].bias
    expected = found @ head.linear.weight.T + head.linear.bias
    torch.testing.assert_close(head(tokens), expected, rtol=1e-5, atol=1e-5)


def test_blocks_of_self_attention_as_in_v_jepa_2() -> None:
    """torch's encoder layers, and its attention without a projection of the output."""
    head = _head("attentive_probe", in_dim=WIDTH, out_dim=OUTPUTS, heads=3, form="blocks", depth=3)
    _spread(head)
    tokens = seen = _tokens()
    assert len(head.before) == 2
    for block in head.before:
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, 3, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        attention = layer.self_attn
        with torch.no_grad():
            attention.in_proj_weight.copy_(block.query_key_value.weight)
            attention.in_proj_bias.copy_(block.query_key_value.bias)
        attention.out_proj, layer.norm1, layer.norm2 = block.output, block.norm_tokens, block.norm
        layer.linear1, layer.linear2 = block.mlp[0], block.mlp[2]
        seen = layer(seen)
    block = head.block
    assert not [*block.output.parameters()]
    attention = torch.nn.MultiheadAttention(WIDTH, 3, batch_first=True)
    layers = (block.query, head.key_value)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([each.weight for each in layers]))
        attention.in_proj_bias.copy_(torch.cat([each.bias for each in layers]))
        attention.out_proj.weight.copy_(torch.eye(WIDTH))
        attention.out_proj.bias.zero_()
    query, seen = head.query.expand(3, 1, -1), block.norm_tokens(seen)
    found = (query + attention(query, seen, seen)[0])[:, 0]
    found = found + block.mlp(block.norm(found))
    torch.testing.assert_close(head(tokens), head.linear(found), rtol=1e-4, atol=1e-4)


def test_blocks_begin_as_in_v_jepa_2() -> None:
    """What each block adds begins at 0.02 / sqrt(2 place); the last one has the place before it."""
    head = _head("attentive_probe", in_dim=256, out_dim=OUTPUTS, form="blocks")
    assert len(head.before) == 3
    for place, block in enumerate(head.before, start=1):
        for weight in (block.output.weight, block.mlp[2].weight):
            assert weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * place), rel=0.1)
        assert block.query_key_value.weight.std().item() == pytest.approx(0.02, rel=0.1)
    last = head.block.mlp[2].weight.std().item()
    assert last == pytest.approx(0.02 / math.sqrt(2 * 3), rel=0.1)


def test_a_block_begins_as_in_v_jepa() -> None:
    """Truncated normal 0.02, what is added by 1 / sqrt(2) of it; no bias."""
    head = _head("attentive_probe", in_dim=256, out_dim=OUTPUTS, form="block")
    block, small = head.block, 0.02 / math.sqrt(2)
    assert head.heads == 4
    for weight, spread in (
        (block.query.weight, 0.02), (head.key_value.weight, 0.02), (block.output.weight, small),
        (block.mlp[0].weight, 0.02), (block.mlp[2].weight, small), (head.query, 0.02),
    ):  # fmt: skip
        assert weight.std().item() == pytest.approx(spread, rel=0.15)
    assert block.mlp[0].out_features == 1024
    assert not any(bool(each.any()) for name, each in head.named_parameters() if "bias" in name)


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


@pytest.mark.parametrize(
    ("form", "norm"),
    [("query", "batch"), ("block", "batch"), ("blocks", "batch"), ("query", "layer")],
)
def test_an_attentive_head_norms_each_token_first(form: str, norm: str) -> None:
    """By the mean and the variance over all tokens of all images, or over the values of a token."""
    tokens = 3 + 2 * _tokens()
    over, kept = ((0, 1), False) if norm == "batch" else ((2,), True)
    mean, variance = tokens.mean(over, kept), tokens.var(over, correction=0, keepdim=kept)
    scaled = (tokens - mean) / torch.sqrt(variance + (1e-6 if norm == "batch" else 1e-5))
    given = {"in_dim": WIDTH, "out_dim": OUTPUTS, "heads": 3, "form": form, "depth": 2}
    head, plain = _head("attentive_probe", **given, norm=norm), _head("attentive_probe", **given)
    _spread(plain)
    head.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(head(tokens), plain(scaled), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(head(tokens), plain(tokens), atol=1e-2)
    assert bool(list(head.norm.parameters())) == (norm == "layer")


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
