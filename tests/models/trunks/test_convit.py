from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.convit import GPSA
from timm.models.convit import ConVit as TimmConvit
from torch import nn

from sslengine.contrib.trunks.convit import Convit, relative_places
from sslengine.errors import ConfigError
from sslengine.models.options import TrunkOptions, VisionTransformerOptions
from sslengine.models.trunks.options import ConvitOptions
from sslengine.models.vissl_names import to_vissl

from . import checks

LAYERS, GATED, HEADS, WIDTH = 4, 2, 4, 32


def trunk(**options: Any) -> Convit:
    torch.manual_seed(0)
    both: dict[str, Any] = {
        "IMAGE_SIZE": 32,
        "PATCH_SIZE": 8,
        "NUM_LAYERS": LAYERS,
        "NUM_HEADS": HEADS,
        "HIDDEN_DIM": WIDTH,
        "MLP_DIM": 50,
        "N_GPSA_LAYERS": GATED,
        **options,
    }
    local = {key: both.pop(key) for key in list(both) if hasattr(ConvitOptions, key)}
    sections = {
        "CONVIT": ConvitOptions(**local),
        "VISION_TRANSFORMERS": VisionTransformerOptions(**both),
    }
    return Convit(TrunkOptions(**sections))


def theirs(ours: Convit, size: int = 32, **options: Any) -> TimmConvit:
    """timm's own for images of that size, with the same function."""
    model = TimmConvit(
        img_size=size,
        patch_size=8,
        num_classes=0,
        depth=LAYERS,
        num_heads=HEADS,
        embed_dim=WIDTH // HEADS,
        mlp_ratio=50.5 / WIDTH,
        local_up_to_layer=GATED,
        norm_layer=nn.LayerNorm,
        **options,
    )
    state = ours.state_dict()
    grid = (size // 8, size // 8)
    state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], grid, num_prefix_tokens=0)
    for name, tensor in state.items():
        if name.endswith("gating_param"):
            state[name] = tensor.flatten()
        if name.endswith("pos_proj.weight"):
            # The mean over the copies of each coordinate.
            state[name] = tensor.unflatten(1, (3, -1)).mean(-1)
    model.load_state_dict(state)
    return model.eval()


def randomised(model: Convit) -> Convit:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("copies", [1, 10])
@pytest.mark.parametrize("size", [32, 48, 16])
def test_features_are_those_of_timm(copies: int, size: int) -> None:
    model = randomised(trunk(LOCALITY_DIM=copies, QKV_BIAS=True))
    library = theirs(model, size, qkv_bias=True)
    # Sizes take turns, as crops do.
    for side in (size, 64, size):
        x = torch.randn(2, 3, side, side)
        with torch.no_grad():
            patches, token = model(x, ["lastMAP", "lastCLS"])
            if side == size:
                tokens = library.forward_features(x)
                torch.testing.assert_close(token, tokens[:, 0], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(
                    patches.flatten(2).mT, tokens[:, 1:], atol=1e-4, rtol=1e-4
                )


def test_relative_places() -> None:
    square = GPSA(8, num_heads=2).get_rel_indices(16)
    torch.testing.assert_close(relative_places(4, 4)[None], square)
    # 2 x 3 patches: from the first (0, 0) to the last (down 1, across 2).
    torch.testing.assert_close(relative_places(2, 3)[0, 5], torch.tensor([2.0, 1.0, 5.0]))
    torch.testing.assert_close(relative_places(2, 3)[5, 0], torch.tensor([-2.0, -1.0, 5.0]))


def test_images_that_are_not_square() -> None:
    found = checks.features(trunk(), (40, 24))
    assert tuple(found["lastMAP"].shape) == (2, WIDTH, 5, 3)
    with pytest.raises(ConfigError, match=r"PATCH_SIZE: 8 does not divide images of 32 x 30"):
        trunk()(torch.randn(1, 3, 32, 30))


def test_it_starts_like_a_convolution() -> None:
    """Nine gated heads are a 3 x 3 kernel: each looks at one neighbour of a patch."""
    model = trunk(LOCALITY_STRENGTH=20.0, NUM_HEADS=9, HIDDEN_DIM=36)
    attention = model.blocks[0].attn
    torch.testing.assert_close(attention.v.weight.detach(), torch.eye(36))
    attention.gating_param.data.fill_(50.0)
    model(torch.randn(1, 3, 32, 32))
    assert "rel_indices" not in dict(attention.named_buffers())
    weights = attention.get_attention(torch.randn(1, 16, 36))[0].detach()
    # Of 4 x 4 patches, number 5 and those around it.
    highest, looked_at = weights[:, 5].max(-1)
    assert sorted(looked_at.tolist()) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert float(highest.min()) > 0.99
    free = trunk(USE_LOCAL_INIT=False).blocks[0].attn
    assert float(free.v.weight.detach().abs().max()) < 0.2
    assert 0 < float(free.pos_proj.weight.detach().std()) < 0.03


def test_options() -> None:
    model = trunk(LOCALITY_STRENGTH=0.0, QK_SCALE=0.7, DROP_PATH_RATE=0.3, DROPOUT_RATE=0.1)
    strengths = [block.attn.locality_strength for block in model.blocks[:GATED]]
    assert strengths == [1.0, 0.5]
    first, second = (block.attn.pos_proj.weight.detach()[0, -1] for block in model.blocks[:GATED])
    assert (float(first), float(second)) == (-1.0, -0.5)
    assert {block.attn.scale for block in model.blocks} == {0.7}
    assert model.blocks[-1].drop_path.drop_prob == pytest.approx(0.3)
    assert model.pos_drop.p == model.blocks[0].mlp.drop1.p == 0.1
    assert model.blocks[0].mlp.fc1.out_features == 50
    assert model.blocks[0].norm1.eps == 1e-5


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"N_GPSA_LAYERS": LAYERS}, r"N_GPSA_LAYERS: 4 of 4 layers"),
        ({"USE_CLASS_TOKEN": False}, r"USE_CLASS_TOKEN: ConViT has a class token"),
    ],
)
def test_sections_that_contradict_each_other(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        trunk(**wrong)


def test_vissl_names() -> None:
    model = trunk()
    checks.names_round_trip(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in to_vissl(model).items()}
    assert shapes["class_token"] == (1, 1, WIDTH)
    assert shapes["pos_embedding"] == (1, 16, WIDTH)
    assert shapes["blocks.0.attn.alpha"] == (1, HEADS, 1, 1)
    assert shapes["blocks.0.attn.pos_proj.weight"] == (HEADS, 30)
    assert shapes["blocks.3.mlp.linear_2.weight"] == (WIDTH, 50)


@pytest.mark.parametrize("parts", [1, 3])
def test_activation_checkpointing_changes_nothing(parts: int) -> None:
    checks.checkpointing_changes_nothing(trunk(DROP_PATH_RATE=0.3, DROPOUT_RATE=0.1), parts)


def test_checkpoint_block() -> None:
    model = trunk(CHECKPOINT_BLOCK=True)
    assert checks.recomputes(model, model.blocks[1].mlp.fc1)
