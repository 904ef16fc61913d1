from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.patches import resampled
from sslengine.models.trunks.vision_transformer import VisionTransformer
from tests.models.trunks.test_transformers import trunk_convit as convit

DEPTH, WIDTH, HEADS = 5, 24, 3


def trunk(**options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    defaults: dict[str, Any] = {
        "IMAGE_SIZE": 32, "PATCH_SIZE": 8, "NUM_LAYERS": DEPTH, "NUM_HEADS": HEADS,
        "HIDDEN_DIM": WIDTH, "MLP_DIM": 50,
    }  # fmt: skip
    return VisionTransformer(VisionTransformerOptions(**{**defaults, **options}))


def theirs(ours: VisionTransformer, **options: Any) -> timm.models.VisionTransformer:
    """timm's own with the same weights."""
    model = timm.models.VisionTransformer(
        img_size=32, patch_size=8, depth=DEPTH, num_heads=HEADS, embed_dim=WIDTH,
        mlp_ratio=50.5 / WIDTH, num_classes=0, dynamic_img_size=True,
        **{"qkv_bias": False, **options},
    )  # fmt: skip
    model.load_state_dict(ours.state_dict(), strict=True)
    return model.eval()


def blocks(model: timm.models.VisionTransformer, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(patches, prefix tokens) behind every block and the final norm."""
    return model.forward_intermediates(
        x, norm=True, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_features_are_those_of_timm(size: tuple[int, int]) -> None:
    ours = trunk(QKV_BIAS=True).eval()
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        outputs = blocks(theirs(ours, qkv_bias=True), x)
        tokens = [torch.cat([prefix, patches], 1) for patches, prefix in outputs]
        means = [patches.mean(1) for patches, _ in outputs]
        expected = {
            "blkCLS1": tokens[1][:, 0], "lastCLS": tokens[-1][:, 0],
            "concatCLS2": torch.cat([tokens[3][:, 0], tokens[4][:, 0]], -1), "lastBLK": tokens[-1],
            "concatBLK3": torch.cat(tokens[2:], -1), "lastPOOL": means[-1],
            "concatPOOL5": torch.cat(means, -1),
            "stridePOOL_2_3": torch.cat([means[4], means[1]], -1),
            "stridePOOL_3": torch.cat([means[4], means[2], means[0]], -1),
            "lastMAP": outputs[-1][0].mT.reshape(2, WIDTH, size[0] // 8, size[1] // 8),
        }  # fmt: skip
        features = ours(x, list(expected))
        for name, feature in zip(expected, features, strict=True):
            torch.testing.assert_close(feature, expected[name], msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(ours(x)[0], expected["lastCLS"])


def test_without_class_token_patches_are_averaged() -> None:
    ours = trunk(USE_CLASS_TOKEN=False).eval()
    assert ours.pos_embed.shape == (1, 16, WIDTH)
    assert not any("CLS" in name for name in ours.feature_names)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        model = theirs(ours, class_token=False, global_pool="avg", fc_norm=False)
        torch.testing.assert_close(ours(x)[0], model(x))
    with pytest.raises(ConfigError, match="no feature 'lastCLS'"):
        ours(x, ["lastCLS"])


def test_widths_and_rates() -> None:
    ours = trunk(MLP_DIM=49, DROP_PATH_RATE=0.2, DROPOUT_RATE=0.1, ATTENTION_DROPOUT_RATE=0.3)
    block = ours.blocks[-1]
    assert block.mlp.fc1.out_features == 49
    # 90 * (98 / 90) is 97.99... in floating point.
    assert trunk(HIDDEN_DIM=90, MLP_DIM=98).blocks[0].mlp.fc1.out_features == 98
    assert block.drop_path1.drop_prob == pytest.approx(0.2)
    assert ours.blocks[2].drop_path1.drop_prob == pytest.approx(0.1)
    assert (ours.pos_drop.p, block.attn.proj_drop.p, block.mlp.drop1.p) == (0.1, 0.1, 0.1)
    assert block.attn.attn_drop.p == 0.3
    assert float(trunk(HIDDEN_DIM=384).cls_token.detach().std()) == pytest.approx(0.02, rel=0.2)


def test_attention_scale() -> None:
    plain, scaled = trunk().eval(), trunk(QK_SCALE=0.7).eval()
    x = torch.randn(2, 3, 32, 32)
    # A scale s is the usual scale 1/sqrt(d) with queries s * sqrt(d) times as long.
    factor = 0.7 * (WIDTH / HEADS) ** 0.5
    with torch.no_grad():
        assert not torch.allclose(plain(x)[0], scaled(x)[0], atol=1e-4)
        for block in plain.blocks:
            block.attn.qkv.weight[:WIDTH] *= factor
        torch.testing.assert_close(plain(x)[0], scaled(x)[0])


# ---- Positions for another grid, where torch is to be deterministic; timm's function is the oracle


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def both(made: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The values, and the gradient of a sum in which each counts differently."""
    (gradient,) = torch.autograd.grad((made.double() * made.detach().double()).sum(), positions)
    return made.detach(), gradient


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("new", [(3, 3), (7, 5), (4, 12), (8, 6)])
def test_it_gives_what_timm_gives(
    new: tuple[int, int], before: int, bf16: bool, deterministic: None
) -> None:
    old = (8, 6)
    draw = torch.Generator().manual_seed(0)
    positions = torch.randn(1, before + 48, 5, generator=draw, requires_grad=True)
    expected = both(
        resample_abs_pos_embed(positions, [*new], [*old], num_prefix_tokens=before), positions
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = both(resampled(positions, old, new, before), positions)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_evaluation_first_changes_nothing(deterministic: None) -> None:
    positions = torch.randn(1, 48, 5, dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        before = resampled(positions, (8, 6), (5, 5))
    assert both(resampled(positions, (8, 6), (5, 5)), positions)[0].equal(before)


def names_of(graph: Any) -> set[str]:
    """Of the operations whose gradients the graph computes."""
    found, left = set(), [graph]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [each for each, _ in node.next_functions]
    return {type(each).__name__ for each in found}


@pytest.mark.parametrize("make", [trunk, convit])
def test_trunks_do_without_the_kernel_then(make: Any) -> None:
    trunk, image = make().eval(), torch.randn(2, 3, 24, 24)

    def outputs() -> tuple[Tensor, bool]:
        output = trunk.features(image, ["lastCLS"])["lastCLS"]
        return output, any("Upsample" in each for each in names_of(output.grad_fn))

    usual, kernel = outputs()
    assert kernel
    torch.use_deterministic_algorithms(True)
    try:
        deterministic, kernel = outputs()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not kernel
    torch.testing.assert_close(deterministic, usual, rtol=1e-4, atol=1e-5)
