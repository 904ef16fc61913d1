"""Tokens by name and masked patches, of the engine's vision transformer and of timm's."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from sslengine.config.sections import section_problems
from sslengine.errors import ConfigError
from sslengine.models.build import build_model, build_trunk
from sslengine.models.model import Model
from sslengine.models.options import (
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    VisionTransformerOptions,
)
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.trunks.patches import patch_grid
from sslengine.models.trunks.tokens import take_input
from sslengine.models.trunks.vision_transformer import VisionTransformer

SMALL: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2,
}  # fmt: skip
OURS: dict[str, Any] = {
    "IMAGE_SIZE": 32, "PATCH_SIZE": 8, "HIDDEN_DIM": 24, "MLP_DIM": 40, "NUM_LAYERS": 2, "NUM_HEADS": 2,
}  # fmt: skip
VIT = {"dynamic_img_size": True, **SMALL}
# The network, its arguments, tokens before the patches, registers among these.
NETWORKS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "vit": ("vit_tiny_patch16_224", SMALL, 1, 0),
    "dynamic": ("vit_tiny_patch16_224", VIT, 1, 0),
    "registers": ("vit_small_patch14_reg4_dinov2", VIT, 5, 4),
    "rope": ("vit_small_patch16_dinov3", VIT, 5, 4),
    "eva": ("eva02_tiny_patch14_224", SMALL, 1, 0),
    "beit": ("beit_base_patch16_224", SMALL, 1, 0),
    "distilled": ("deit_tiny_distilled_patch16_224", SMALL, 2, 1),
    "no class token": ("vit_base_patch16_siglip_224", SMALL, 0, 0),
}
INPUTS = [["view", {"feat_names": ["lastPATCH"], "additional_keys": ["mask", "patches_at"]}]]


def options(name: str, **more: Any) -> ModelOptions:
    if name == "ours":
        trunk = TrunkOptions(
            "vision_transformer", VISION_TRANSFORMERS=VisionTransformerOptions(**OURS)
        )
    else:
        model, arguments, _, _ = NETWORKS[name]
        trunk = TrunkOptions("timm", TIMM=TimmOptions(model=model, arguments=arguments))
    return ModelOptions(TRUNK=trunk, **more)


def built(name: str, **more: Any) -> Any:
    """In double precision, with an embedding that nobody knows in place of hidden patches."""
    torch.manual_seed(0)
    trunk: Any = build_trunk(options(name, MULTI_INPUT_HEAD_MAPPING=INPUTS, **more))
    for module in trunk.modules():
        if (
            getattr(module, "gamma_1", None) is not None
        ):  # LayerScale begins so small that nothing is seen
            nn.init.ones_(module.gamma_1)
            nn.init.ones_(module.gamma_2)
    nn.init.normal_(trunk.mask_token)
    return trunk.double().eval()


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 3, 32, 32, dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_tokens_of_timms_networks_by_name(name: str, x: Tensor) -> None:
    trunk, (_, _, before, registers) = built(name), NETWORKS[name]
    tokens = trunk.forward_features(x)
    if isinstance(trunk.norm, nn.Identity):
        tokens = trunk.fc_norm(tokens)
    assert tokens.shape == (3, before + 16, 24)
    expected = {
        "lastBLK": tokens, "lastPATCH": tokens[:, before:], "lastPOOL": tokens[:, before:].mean(1),
    }  # fmt: skip
    if before:
        expected["lastCLS"] = tokens[:, 0]
    if registers:
        expected["lastREG"] = tokens[:, before - registers : before]
    assert {each for each in trunk.feature_names if each.startswith("last")} == {*expected}
    for key, found in zip(expected, trunk(x, [*expected]), strict=True):
        torch.testing.assert_close(found, expected[key], msg=key)


@pytest.mark.parametrize(("name", "pool"), [("vit", "CLS"), ("rope", "POOL"), ("eva", "POOL")])
def test_what_a_network_pools(name: str, pool: str, x: Tensor) -> None:
    """`flatten` is the mean of the patches where timm pools so; `global_pool` chooses."""
    trunk = built(name)
    flatten, tokens = trunk(x, ["flatten", f"last{pool}"])
    if name != "eva":  # which normalises the mean, not the patches
        torch.testing.assert_close(flatten, tokens)
    assert trunk.global_pool == {"CLS": "token", "POOL": "avg"}[pool]
    model, arguments, _, _ = NETWORKS[name]
    section = TimmOptions(model=model, arguments={**arguments, "global_pool": "token"})
    chosen: Any = build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=section))).eval()
    torch.testing.assert_close(*chosen(x.float(), ["flatten", "lastCLS"]))


@pytest.mark.parametrize("name", ["vit", "registers", "rope", "distilled"])
def test_class_tokens_of_the_last_blocks(name: str, x: Tensor) -> None:
    """As timm reads them, and joined with the mean of the patches."""
    trunk = built(name)
    blocks = trunk.forward_intermediates(
        x, 2, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )
    classes = [prefix[:, 0] for _, prefix in blocks]
    mean = blocks[-1][0].mean(1)
    joined = torch.cat([*classes, mean], dim=-1)
    names = ["concatCLS1", "concatCLS2", "concatCLS2+lastPOOL"]
    for found, expected in zip(
        trunk(x, names), (classes[1], torch.cat(classes, -1), joined), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["ours", *NETWORKS])
def test_a_hidden_patch_is_the_mask_token_and_its_pixels_are_not_seen(name: str, x: Tensor) -> None:
    trunk = built(name)
    mask = torch.rand(3, 4, 4) < 0.4
    (found,) = trunk(x, ["lastBLK"], mask=mask)
    other = torch.where(
        mask.repeat_interleave(8, 1).repeat_interleave(8, 2).unsqueeze(1), torch.randn_like(x), x
    )
    assert torch.equal(trunk(other, ["lastBLK"], mask=mask.flatten(1))[0], found)
    plain = trunk(x, ["lastBLK"])[0]
    assert not torch.allclose(found, plain, atol=1e-3)
    assert torch.equal(trunk(x, ["lastBLK"], mask=torch.zeros_like(mask))[0], plain)
    # In a network whose embedding of these patches is the token, nothing has to be hidden.
    twin = copy.deepcopy(trunk)
    twin.patch_embed.register_forward_hook(lambda _, inputs, patches: torch.where(
        mask.view(*patches.shape[:-1], 1), trunk.mask_token.detach(), patches))  # fmt: skip
    torch.testing.assert_close(twin(x, ["lastBLK"])[0], found)


@pytest.mark.parametrize("name", ["ours", "dynamic", "eva"])
def test_patches_at(name: str, x: Tensor) -> None:
    trunk, at = built(name), torch.tensor([0, 5, 17, 47])
    (every,) = trunk(x, ["lastPATCH"])
    torch.testing.assert_close(
        trunk(x, ["lastPATCH"], patches_at=at)[0],
        torch.stack([every[0, 0], every[0, 5], every[1, 1], every[2, 15]]),
    )
    assert trunk(x, ["lastPATCH"], patches_at=at[:0])[0].shape == (0, 24)
    assert trunk(x, ["lastPATCH"])[0].shape == (3, 16, 24)  # nothing is left of the last pass


def test_the_mask_token_is_trained_and_copied_with_the_trunk(x: Tensor) -> None:
    trunk = built("ours")
    copied = copy.deepcopy(trunk)
    with torch.no_grad():
        copied.mask_token.neg_()
    mask = torch.ones(3, 16, dtype=torch.bool)
    assert not torch.allclose(copied(x, mask=mask)[0], trunk(x, mask=mask)[0])
    trunk(x, mask=mask)[0].square().sum().backward()
    assert trunk.mask_token.grad.abs().sum() > 0
    assert trunk.patch_embed.proj.weight.grad.abs().sum() == 0


def test_without_a_route_that_masks_there_is_no_token(x: Tensor) -> None:
    trunk = build_trunk(options("ours"))
    assert "mask_token" not in dict(trunk.named_parameters())
    assert "mask" not in trunk.extra_inputs


def test_two_sizes_of_crops_and_two_heads_on_one_input() -> None:
    """Class tokens and hidden patches of the large crops, class tokens of the small ones."""
    routes = [
        ["large", {"feat_names": ["lastCLS", "lastPATCH", "lastCLS"], "head_index": [0, 1, 2],
                   "additional_keys": ["mask", "patches_at"]}],
        ["small", {"feat_names": ["lastCLS"], "head_index": 0}],
    ]  # fmt: skip
    scores = {"in_dim": "auto", "num_clusters": [7], "hidden_dim": 6, "bottleneck_dim": 5}
    heads = HeadOptions(PARAMS=[["dino_head", scores], ["dino_head", scores], ["identity", {}]])
    model = build_model(options("dynamic", MULTI_INPUT_HEAD_MAPPING=routes, HEAD=heads)).eval()
    assert isinstance(model, Model)
    mask, at = torch.rand(2, 4, 4) < 0.5, torch.tensor([3, 18])
    large, small = torch.randn(2, 3, 32, 32), torch.randn(4, 3, 16, 16)
    of_large, of_small = model({"large": large, "small": small, "mask": mask, "patches_at": at})
    (tokens,) = model.trunk(large, ["lastBLK"], mask=mask)
    first, second, _ = model.heads
    torch.testing.assert_close(of_large[0], first(tokens[:, 0]))
    torch.testing.assert_close(of_large[1], second(torch.stack([tokens[0, 4], tokens[1, 3]])))
    torch.testing.assert_close(of_large[2], tokens[:, 0])
    torch.testing.assert_close(of_small, first(model.trunk(small, ["lastCLS"])[0]))


def test_masks_of_another_grid() -> None:
    trunk = built("ours")
    with pytest.raises(ConfigError, match=r"mask of shape \(3, 2, 2\) for 3 images of 16 patches"):
        trunk(torch.randn(3, 3, 32, 32, dtype=torch.float64), mask=torch.ones(3, 2, 2).bool())


def test_a_trunk_without_patches() -> None:
    with pytest.raises(ConfigError, match="takes no input .mask."):
        build_trunk(ModelOptions(MULTI_INPUT_HEAD_MAPPING=INPUTS))


def test_registers_layer_scale_and_gates_are_those_of_timm(x: Tensor) -> None:
    """DINOv2's giant, small: its weights in timm's network of that name give the same tokens."""
    more = {"REGISTER_TOKENS": 4, "LAYER_SCALE": 0.3, "SWIGLU": True, "QKV_BIAS": True}
    ours: Any = build_trunk(
        ModelOptions(TRUNK=TrunkOptions(
            "vision_transformer", VISION_TRANSFORMERS=VisionTransformerOptions(**OURS, **more),
        ))
    ).double().eval()  # fmt: skip
    assert float(ours.blocks[0].ls1.gamma.detach().mean()) == pytest.approx(0.3)
    theirs = timm.create_model(
        "vit_giant_patch14_reg4_dinov2", num_classes=0, mlp_ratio=2 * 40.1 / 24, **SMALL
    ).double().eval()  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    tokens = theirs.forward_features(x)
    found = ours(x, ["lastCLS", "lastREG", "lastPATCH", "lastBLK"])
    for ours_of, part in zip(
        found, (tokens[:, 0], tokens[:, 1:5], tokens[:, 5:], tokens), strict=True
    ):
        torch.testing.assert_close(ours_of, part)


@pytest.mark.parametrize("name", ["vit", "rope", "beit"])
def test_timms_blocks_with_one_rate_of_stochastic_depth(name: str) -> None:
    model, arguments, _, _ = NETWORKS[name]
    arguments = {**arguments, "drop_path_rate": 0.3}
    rising, same = (
        build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=TimmOptions(
            model=model, arguments=arguments, drop_path_uniform=uniform))))
        for uniform in (False, True)
    )  # fmt: skip
    paths = [[getattr(block, path) for block in trunk.blocks for path in ("drop_path1", "drop_path2")]
             for trunk in (rising, same)]  # fmt: skip
    assert [each.drop_prob for each in paths[1]] == [0.3] * 4
    assert [getattr(each, "drop_prob", 0.0) for each in paths[0]] == pytest.approx([0, 0, 0.3, 0.3])
    assert same.state_dict().keys() == rising.state_dict().keys()
    assert list(TimmOptions(model=model, drop_path_uniform=True).check())


# ---- Patches: the stem that makes them, which of them are shown, and which grids they form


def test_patch_grid() -> None:
    assert patch_grid(torch.zeros(1, 3, 32, 48), 16, "BEIT") == (2, 3)
    for size in ((32, 47), (31, 48)):
        with pytest.raises(ConfigError, match=r"TRUNK\.BEIT\.PATCH_SIZE: 16 does not divide"):
            patch_grid(torch.zeros(1, 3, *size), 16, "BEIT")


# ---- Stems of the vision transformer: what a token sees of its neighbours, and the number of
# tokens.


SMALL_PATCHES = {"IMAGE_SIZE": 32, "HIDDEN_DIM": 64, "MLP_DIM": 64, "NUM_LAYERS": 1, "NUM_HEADS": 2}


def trunk(stem: str, patch_size: int = 8, in_chans: int = 3) -> VisionTransformer:
    options = VisionTransformerOptions(**SMALL_PATCHES, STEM=stem, PATCH_SIZE=patch_size)  # type: ignore[arg-type]
    return VisionTransformer(options, in_chans)


def seen(embed: nn.Module, patch: int) -> Tensor:
    """Which pixels of a 32 x_patches 32 image change the token of this patch."""
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
    """Three 3 x_patches 3 convolutions of stride 2 see 15 x_patches 15 pixels around 8 x_patches 8."""
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
    take_input(ours, "mask")
    assert ours.mask_token.shape == (1, 64)
    assert ours(torch.randn(2, 3, 16, 24), ["lastPATCH"])[0].shape == (2, 6, 64)
    ours.eval()
    image, other = torch.randn(2, 1, 3, 32, 32)
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[:, 1, 1] = True
    changed = image.clone()
    changed[..., 8:16, 8:16] = other[..., 8:16, 8:16]
    first, second = (ours(x_patches, ["lastBLK"], mask=mask)[0] for x_patches in (image, changed))
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
def x_patches() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 3, 32, 32, dtype=torch.float64)


def attending(trunk: Any, x_patches: Tensor, shown: Tensor) -> Tensor:
    """All tokens, where only the shown patches and the tokens before the patches are attended to.

    Block by block, as timm's forward_features goes through them.
    """
    before = trunk.num_prefix_tokens
    seen = torch.zeros(len(x_patches), before + 16, dtype=torch.bool)
    seen[:, :before] = True
    seen.scatter_(1, shown + before, True)
    mask = torch.zeros(len(x_patches), 1, 1, before + 16, dtype=x_patches.dtype)
    mask.masked_fill_(~seen[:, None, None], -torch.inf)
    tokens, rope = trunk._pos_embed(trunk.patch_embed(x_patches)), None
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
def test_what_is_left_is_what_attention_to_these_patches_gives(
    name: str, x_patches: Tensor
) -> None:
    trunk = built(name)
    (found,) = trunk(x_patches, ["lastBLK"], shown=SHOWN)
    assert found.shape == (3, trunk.num_prefix_tokens + 4, 24)
    torch.testing.assert_close(found, attending(trunk, x_patches, SHOWN))
    # Nothing is left of it in the next pass, or in a copy.
    whole = trunk(x_patches, ["lastBLK"])[0]
    assert whole.shape[1] == trunk.num_prefix_tokens + 16
    torch.testing.assert_close(copy.deepcopy(trunk)(x_patches, ["lastBLK"], shown=SHOWN)[0], found)
    torch.testing.assert_close(trunk(x_patches, ["lastBLK"])[0], whole)


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
    x_patches = torch.randn(3, 3, *trunk.patch_embed.img_size, dtype=torch.float64)
    (found,) = trunk(x_patches, ["lastBLK"], shown=SHOWN)
    torch.testing.assert_close(found, attending(trunk, x_patches, SHOWN))


def test_gradients_reach_shown_patches_alone(x_patches: Tensor) -> None:
    trunk = built("rope")
    image = x_patches.clone().requires_grad_()
    trunk(image, ["lastBLK"], shown=SHOWN)[0].square().sum().backward()
    assert image.grad is not None
    reached = image.grad.abs().sum(1).unflatten(1, (4, 8)).unflatten(3, (4, 8)).sum((2, 4)) > 0
    expected = torch.zeros(3, 16, dtype=torch.bool).scatter(1, SHOWN, True)
    assert torch.equal(reached.flatten(1), expected)


def test_with_masks_and_timms_own_dropout_of_patches(x_patches: Tensor) -> None:
    trunk = built("rope")
    mask = torch.zeros(3, 16, dtype=torch.bool)
    mask[:, [5, 15]] = True
    (found,) = trunk(x_patches, ["lastBLK"], shown=SHOWN, mask=mask)
    torch.testing.assert_close(found[2], trunk(x_patches, ["lastBLK"], shown=SHOWN)[0][2])
    assert not torch.allclose(found[0], trunk(x_patches, ["lastBLK"], shown=SHOWN)[0][0], atol=1e-3)
    model, arguments, _, _ = NETWORKS["registers"]
    section = TimmOptions(model=model, arguments={**arguments, "patch_drop_rate": 0.5})
    dropping: Any = build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=section))).train()
    assert dropping(x_patches.float(), ["lastBLK"])[0].shape[1] == 5 + 8
    assert dropping(x_patches.float(), ["lastBLK"], shown=SHOWN)[0].shape[1] == 5 + 4


def test_networks_that_need_every_patch_do_not_take_it() -> None:
    for model in ("beit_base_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"):
        arguments = {"depth": 1} if "beit" in model else {}
        section = TimmOptions(model=model, arguments=arguments)
        trunk = build_trunk(ModelOptions(TRUNK=TrunkOptions("timm", TIMM=section)))
        assert "shown" not in trunk.extra_inputs
