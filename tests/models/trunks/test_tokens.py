"""Tokens by name and masked patches, of the engine's vision transformer and of timm's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

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
    with pytest.raises(ConfigError, match="cannot take a mask"):
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
