"""Patches: the stem that makes them, which of them are shown, and which grids they form."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.sections import section_problems
from sslengine.errors import ConfigError
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions, TrunkOptions, VisionTransformerOptions
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.trunks.patches import patch_grid
from sslengine.models.trunks.tokens import add_mask_token
from sslengine.models.trunks.vision_transformer import VisionTransformer
from tests.models.trunks.test_tokens import NETWORKS, built
from tests.models.trunks.test_tokens import SMALL as SMALL_TOKENS


def test_patch_grid() -> None:
    assert patch_grid(torch.zeros(1, 3, 32, 48), 16, "BEIT") == (2, 3)
    for size in ((32, 47), (31, 48)):
        with pytest.raises(ConfigError, match=r"TRUNK\.BEIT\.PATCH_SIZE: 16 does not divide"):
            patch_grid(torch.zeros(1, 3, *size), 16, "BEIT")


# ---- Stems of the vision transformer: what a token sees of its neighbours, and the number of
# tokens.


SMALL = {"IMAGE_SIZE": 32, "HIDDEN_DIM": 64, "MLP_DIM": 64, "NUM_LAYERS": 1, "NUM_HEADS": 2}


def trunk(stem: str, patch_size: int = 8, in_chans: int = 3) -> VisionTransformer:
    options = VisionTransformerOptions(**SMALL, STEM=stem, PATCH_SIZE=patch_size)  # type: ignore[arg-type]
    return VisionTransformer(options, in_chans)


def seen(embed: nn.Module, patch: int) -> Tensor:
    """Which pixels of a 32 x 32 image change the token of this patch."""
    image = torch.randn(1, 3, 32, 32, requires_grad=True)
    embed.eval()(image).flatten(1, 2)[0, patch].square().sum().backward()
    assert image.grad is not None
    return image.grad[0].abs().sum(0) > 0


@pytest.mark.parametrize("stem", ["patches", "mlp"])
@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
def test_a_patch_by_itself(stem: str, patch_size: int) -> None:
    embed = trunk(stem, patch_size).patch_embed
    columns = 32 // patch_size
    pixels = seen(embed, columns + 1 if columns > 2 else columns)
    expected = torch.zeros(32, 32, dtype=torch.bool)
    left = patch_size if columns > 2 else 0
    expected[patch_size : 2 * patch_size, left : left + patch_size] = True
    assert torch.equal(pixels, expected)


def test_convolutions_overlap() -> None:
    """Three 3 x 3 convolutions of stride 2 see 15 x 15 pixels around 8 x 8."""
    pixels = seen(trunk("conv").patch_embed, 5)  # row 1, column 1
    rows, columns = pixels.any(1).nonzero().flatten(), pixels.any(0).nonzero().flatten()
    assert rows.tolist() == columns.tolist() == [*range(1, 16)]


def test_layers() -> None:
    convolutions = [m for m in trunk("conv", 16, 5).patch_embed.modules() if _is(m)]
    assert [m.out_channels for m in convolutions] == [16, 16, 32, 64, 64]
    assert [m.stride[0] for m in convolutions] == [2, 2, 2, 2, 1]
    patches = [m for m in trunk("mlp", 16, 5).patch_embed.modules() if _is(m)]
    assert [m.out_channels for m in patches] == [16, 16, 64, 64]
    assert [m.kernel_size[0] for m in patches] == [m.stride[0] for m in patches] == [4, 2, 2, 1]
    for layers in (convolutions, patches):
        assert layers[0].in_channels == 5
        assert all(a.out_channels == b.in_channels for a, b in pairwise(layers))


def _is(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d)


@pytest.mark.parametrize("stem", ["conv", "mlp"])
def test_sizes_and_masks(stem: str) -> None:
    """A network of another image size, and hidden patches that only the mlp does not see at all."""
    ours = trunk(stem)
    add_mask_token(ours)
    assert ours.mask_token.shape == (1, 64)
    assert ours(torch.randn(2, 3, 16, 24), ["lastPATCH"])[0].shape == (2, 6, 64)
    ours.eval()
    image, other = torch.randn(2, 1, 3, 32, 32)
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[:, 1, 1] = True
    changed = image.clone()
    changed[..., 8:16, 8:16] = other[..., 8:16, 8:16]
    first, second = (ours(x, ["lastBLK"], mask=mask)[0] for x in (image, changed))
    assert torch.equal(first, second) == (stem == "mlp")


def test_mistakes() -> None:
    messages = [*section_problems(VisionTransformerOptions(STEM="conv", PATCH_SIZE=6))]
    assert any("PATCH_SIZE" in each and "power of 2" in each for each in messages)
    assert any("STEM" in each for each in section_problems(VisionTransformerOptions(STEM="convs")))


# ---- Patches that are left out, of the engine's vision transformer and of timm's.


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
        ("vit_small_patch16_rope_mixed_224", SMALL_TOKENS),
        ("vit_small_patch16_rope_224", SMALL_TOKENS),
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
