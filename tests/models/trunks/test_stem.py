"""Stems of the vision transformer: what a token sees of its neighbours, and the number of tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.sections import section_problems
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions, TrunkOptions, VisionTransformerOptions
from sslengine.models.trunks.tokens import add_mask_token
from sslengine.models.trunks.vision_transformer import VisionTransformer

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


def test_it_is_chosen_by_name() -> None:
    options = VisionTransformerOptions(**SMALL, STEM="conv", PATCH_SIZE=8)  # type: ignore[arg-type]
    built = build_trunk(
        ModelOptions(TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=options))
    )
    assert "patch_embed.proj.0.weight" in dict(built.named_parameters())


def test_mistakes() -> None:
    messages = [*section_problems(VisionTransformerOptions(STEM="conv", PATCH_SIZE=6))]
    assert any("PATCH_SIZE" in each and "power of 2" in each for each in messages)
    assert any("STEM" in each for each in section_problems(VisionTransformerOptions(STEM="convs")))
