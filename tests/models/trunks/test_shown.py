"""Patches that are left out, of the engine's vision transformer and of timm's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions, TrunkOptions
from sslengine.models.trunks.library_options import TimmOptions
from tests.models.trunks.test_tokens import NETWORKS, SMALL, built

# Of test_tokens: all but BEiT's, whose attention needs every patch.
NAMES = ["ours", *(name for name in NETWORKS if name != "beit")]
SHOWN = torch.tensor([[5, 0, 9, 10], [15, 3, 2, 7], [1, 4, 6, 8]])


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 3, 32, 32, dtype=torch.float64)


def attending(trunk: Any, x: Tensor, shown: Tensor) -> Tensor:
    """All tokens, where only the shown patches and the tokens before the patches are attended to.

    Block by block, as timm's forward_features goes through them.
    """
    before = trunk.num_prefix_tokens
    seen = torch.zeros(len(x), before + 16, dtype=torch.bool)
    seen[:, :before] = True
    seen.scatter_(1, shown + before, True)
    mask = torch.zeros(len(x), 1, 1, before + 16, dtype=x.dtype)
    mask.masked_fill_(~seen[:, None, None], -torch.inf)
    tokens, rope = trunk._pos_embed(trunk.patch_embed(x)), None
    if isinstance(tokens, tuple):
        tokens, rope = tokens
    tokens = trunk.norm_pre(tokens)
    for number, block in enumerate(trunk.blocks):
        rotations = {} if rope is None else {"rope": rope[number] if rope.ndim == 4 else rope}
        tokens = block(tokens, attn_mask=mask, **rotations)
    normed: Tensor = trunk.norm(tokens)
    if isinstance(trunk.norm, torch.nn.Identity):
        normed = trunk.fc_norm(tokens)
    places = shown.unsqueeze(-1).expand(-1, -1, normed.shape[-1])
    return torch.cat([normed[:, :before], normed[:, before:].gather(1, places)], dim=1)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_is_what_attention_to_these_patches_gives(name: str, x: Tensor) -> None:
    trunk = built(name)
    (found,) = trunk(x, ["lastBLK"], shown=SHOWN)
    assert found.shape == (3, trunk.num_prefix_tokens + 4, 24)
    torch.testing.assert_close(found, attending(trunk, x, SHOWN))
    # Nothing is left of it in the next pass, or in a copy.
    whole = trunk(x, ["lastBLK"])[0]
    assert whole.shape[1] == trunk.num_prefix_tokens + 16
    torch.testing.assert_close(copy.deepcopy(trunk)(x, ["lastBLK"], shown=SHOWN)[0], found)
    torch.testing.assert_close(trunk(x, ["lastBLK"])[0], whole)


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("vit_tiny_r_s16_p8_224", {"img_size": 128, "embed_dim": 24, "depth": 2, "num_heads": 2}),
        ("vit_small_patch16_rope_mixed_224", SMALL),
        ("vit_small_patch16_rope_224", SMALL),
    ],
)
def test_other_networks_of_timm(model: str, arguments: dict[str, Any]) -> None:
    """One on a convolutional network, whose patches overlap; other rotary positions."""
    torch.manual_seed(0)
    section = TimmOptions(model=model, arguments=arguments)
    trunk: Any = build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=section)))
    trunk = trunk.double().eval()
    assert trunk.patch_size * 4 == arguments["img_size"]
    x = torch.randn(3, 3, *trunk.patch_embed.img_size, dtype=torch.float64)
    (found,) = trunk(x, ["lastBLK"], shown=SHOWN)
    torch.testing.assert_close(found, attending(trunk, x, SHOWN))


def test_gradients_reach_shown_patches_alone(x: Tensor) -> None:
    trunk = built("rope")
    image = x.clone().requires_grad_()
    trunk(image, ["lastBLK"], shown=SHOWN)[0].square().sum().backward()
    assert image.grad is not None
    reached = image.grad.abs().sum(1).unflatten(1, (4, 8)).unflatten(3, (4, 8)).sum((2, 4)) > 0
    expected = torch.zeros(3, 16, dtype=torch.bool).scatter(1, SHOWN, True)
    assert torch.equal(reached.flatten(1), expected)


def test_with_masks_and_timms_own_dropout_of_patches(x: Tensor) -> None:
    trunk = built("rope")
    mask = torch.zeros(3, 16, dtype=torch.bool)
    mask[:, [5, 15]] = True
    (found,) = trunk(x, ["lastBLK"], shown=SHOWN, mask=mask)
    torch.testing.assert_close(found[2], trunk(x, ["lastBLK"], shown=SHOWN)[0][2])
    assert not torch.allclose(found[0], trunk(x, ["lastBLK"], shown=SHOWN)[0][0], atol=1e-3)
    model, arguments, _, _ = NETWORKS["registers"]
    section = TimmOptions(model=model, arguments={**arguments, "patch_drop_rate": 0.5})
    dropping: Any = build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=section))).train()
    assert dropping(x.float(), ["lastBLK"])[0].shape[1] == 5 + 8
    assert dropping(x.float(), ["lastBLK"], shown=SHOWN)[0].shape[1] == 5 + 4


def test_networks_that_need_every_patch_do_not_take_it() -> None:
    for model in ("beit_base_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"):
        arguments = {"depth": 1} if "beit" in model else {}
        section = TimmOptions(model=model, arguments=arguments)
        trunk = build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=section)))
        assert "shown" not in trunk.extra_inputs
