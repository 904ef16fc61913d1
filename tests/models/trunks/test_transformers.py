"""XCiT, Swin and ConViT beside timm's."""

from __future__ import annotations

from typing import Any

import pytest
import timm.models.beit
import timm.models.swin_transformer
import timm.models.xcit
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.beit import Beit as TimmBeit
from timm.models.convit import GPSA
from timm.models.convit import ConVit as TimmConvit
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from timm.models.swin_transformer import WindowAttention
from timm.models.xcit import Xcit as TimmXcit
from torch import Tensor, nn

from sslengine.contrib.trunks.beit import Beit
from sslengine.contrib.trunks.convit import Convit, relative_places
from sslengine.errors import ConfigError
from sslengine.models.options import TrunkOptions, VisionTransformerOptions
from sslengine.models.trunks.aliases import (
    SwinTransformer,
    Xcit,
    make_swin_transformer,
    make_xcit,
)
from sslengine.models.trunks.options import (
    BeitOptions,
    ConvitOptions,
    SwinTransformerOptions,
    XcitOptions,
)
from sslengine.models.weights.names import read_vissl, write_vissl

from . import checks

DEPTH, WIDTH, HEADS = 3, 32, 4


def trunk(**options: Any) -> Xcit:
    torch.manual_seed(0)
    sizes = {"HIDDEN_DIM": WIDTH, "NUM_LAYERS": DEPTH, "NUM_HEADS": HEADS, "IMAGE_SIZE": 32}
    return make_xcit(XcitOptions(**{**sizes, **options}))


def theirs(**options: Any) -> TimmXcit:
    sizes = {"img_size": 32, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    return TimmXcit(num_classes=0, **{**sizes, "tokens_norm": True, **options})


@pytest.mark.parametrize("size", [(32, 32), (40, 21)])
@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ({"PATCH_SIZE": 8, "MLP_RATIO": 2.0}, {"patch_size": 8, "mlp_ratio": 2.0}),
        (
            {"TOKENS_NORM": False, "QKV_BIAS": False, "NUM_CLASS_LAYERS": 3},
            {"tokens_norm": False, "qkv_bias": False, "cls_attn_layers": 3},
        ),
    ],
)
def test_features_are_those_of_timm(
    ours: dict[str, Any], other: dict[str, Any], size: tuple[int, int]
) -> None:
    model, library = trunk(**ours).eval(), theirs(**other).eval()
    library.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        tokens = library.forward_features(x)
        patches, token = model(x, ["lastMAP", "lastCLS"])
        torch.testing.assert_close(token, tokens[:, 0])
        torch.testing.assert_close(patches.flatten(2).mT, tokens[:, 1:])
        patch = library.patch_embed.patch_size
        assert patches.shape[2:] == (-(-size[0] // patch), -(-size[1] // patch))


def test_vissl_names_are_those_of_the_authors() -> None:
    """timm reads the authors' files, whose names VISSL has too."""
    model = trunk().eval()
    checks.names_round_trip(model)
    named = write_vissl(model)
    assert named["cls_attn_blocks.1.attn.qkv.weight"].shape == (3 * WIDTH, WIDTH)
    assert "pos_embeder.token_projection.weight" in named
    library = theirs().eval()
    library.load_state_dict(timm.models.xcit.checkpoint_filter_fn(dict(named), library))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))


def test_layers_are_recomputed_as_asked() -> None:
    for xca in (False, True):
        for attention in (False, True):
            model = trunk(CHECKPOINT_XCA_BLOCK=xca, CHECKPOINT_ATTN_BLOCK=attention)
            assert checks.recomputes(model, model.blocks[1].attn.qkv) is xca
            model = trunk(CHECKPOINT_XCA_BLOCK=xca, CHECKPOINT_ATTN_BLOCK=attention)
            assert checks.recomputes(model, model.cls_attn_blocks[1].attn.q) is attention


# ---- swin transformer


def trunk_swin(**options: Any) -> SwinTransformer:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "IMAGE_SIZE": 64,
        "EMBED_DIM": 16,
        "DEPTHS": [2, 2, 2],
        "NUM_HEADS": [2, 4, 4],
        "WINDOW_SIZE": 4,
    }
    return make_swin_transformer(SwinTransformerOptions(**{**sizes, **options}))


def theirs_swin(**options: Any) -> TimmSwin:
    sizes: dict[str, Any] = {
        "img_size": 64,
        "embed_dim": 16,
        "depths": (2, 2, 2),
        "num_heads": (2, 4, 4),
        "window_size": 4,
    }
    return TimmSwin(num_classes=0, **{**sizes, **options})


@pytest.mark.parametrize("size", [(64, 64), (20, 12)])
def test_features_are_those_of_timm_swin(size: tuple[int, int]) -> None:
    """With 20 x 12 pixels there are maps of 5 x 3 and 3 x 2 patches, which are padded."""
    model, library = (
        trunk_swin(QKV_BIAS=False).eval(),
        theirs_swin(qkv_bias=False, strict_img_size=False),
    )
    library.eval().load_state_dict(model.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        stages = library.forward_intermediates(x, intermediates_only=True)
        found = model(x, model.feature_names)
        last = library.norm(stages[-1].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for feature, expected in zip(found, [*stages, last, library(x), library(x)], strict=True):
            torch.testing.assert_close(feature, expected)


def test_rates_drop_the_same_in_training_swin() -> None:
    model = trunk_swin(DROP_PATH_RATE=0.3, ATTENTION_DROPOUT_RATE=0.2)
    library = theirs_swin(drop_path_rate=0.3, attn_drop_rate=0.2)
    library.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 64, 64)
    outputs = []
    for each in (model, library):
        torch.manual_seed(3)
        outputs.append(each.train()(x))
    torch.testing.assert_close(outputs[0][0], outputs[1])
    dropping = trunk_swin(DROPOUT_RATE=0.4)
    assert dropping.layers[0].downsample.p == dropping.layers[0].blocks[0].mlp.drop1.p == 0.4


def test_attention_scale() -> None:
    plain, scaled = trunk_swin().eval(), trunk_swin(QK_SCALE=0.7).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert not torch.allclose(plain(x)[0], scaled(x)[0], atol=1e-4)
        for each in plain.modules():
            if isinstance(each, WindowAttention):
                width = each.qkv.in_features
                # A scale s is the usual scale with queries s / usual times as long.
                each.qkv.weight[:width] *= 0.7 / each.scale
                each.qkv.bias[:width] *= 0.7 / each.scale
        torch.testing.assert_close(plain(x)[0], scaled(x)[0])


def test_vissl_names_are_those_of_the_authors_swin() -> None:
    """timm reads the authors' files, whose names VISSL has too, buffers included."""
    model = trunk_swin().eval()
    checks.names_round_trip(model)
    named = write_vissl(model)
    assert "layers.0.downsample.reduction.weight" in named
    assert "layers.2.downsample.reduction.weight" not in named
    library = theirs_swin().eval()
    library.load_state_dict(timm.models.swin_transformer.checkpoint_filter_fn(named, library))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))
    constants = {
        "layers.0.blocks.0.attn.relative_position_index": torch.zeros(16, 16),
        "layers.0.blocks.1.attn_mask": torch.zeros(4, 16, 16),
    }
    back = read_vissl(model, {**named, **constants})
    assert back.keys() == model.state_dict().keys()


# ---- convit


LAYERS, GATED, HEADS_CONVIT, WIDTH_CONVIT = 4, 2, 4, 32


def trunk_convit(**options: Any) -> Convit:
    torch.manual_seed(0)
    both: dict[str, Any] = {
        "IMAGE_SIZE": 32,
        "PATCH_SIZE": 8,
        "NUM_LAYERS": LAYERS,
        "NUM_HEADS": HEADS_CONVIT,
        "HIDDEN_DIM": WIDTH_CONVIT,
        "MLP_DIM": 50,
        "N_GPSA_LAYERS": GATED,
        **options,
    }
    local = {key: both.pop(key) for key in list(both) if hasattr(ConvitOptions, key)}
    options_of = TrunkOptions(VISION_TRANSFORMERS=VisionTransformerOptions(**both))
    vars(options_of)["CONVIT"] = ConvitOptions(**local)
    return Convit(options_of)


def theirs_convit(ours: Convit, size: int = 32, **options: Any) -> TimmConvit:
    """timm's own for images of that size, with the same function."""
    model = TimmConvit(
        img_size=size,
        patch_size=8,
        num_classes=0,
        depth=LAYERS,
        num_heads=HEADS_CONVIT,
        embed_dim=WIDTH_CONVIT // HEADS_CONVIT,
        mlp_ratio=50.5 / WIDTH_CONVIT,
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


@pytest.mark.parametrize(("copies", "size"), [(1, 32), (10, 48)])
def test_features_are_those_of_timm_convit(copies: int, size: int) -> None:
    model = randomised(trunk_convit(LOCALITY_DIM=copies, QKV_BIAS=True))
    library = theirs_convit(model, size, qkv_bias=True)
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
    found = checks.features(trunk_convit(), (40, 24))
    assert tuple(found["lastMAP"].shape) == (2, WIDTH_CONVIT, 5, 3)
    with pytest.raises(ConfigError, match=r"PATCH_SIZE: 8 does not divide images of 32 x 30"):
        trunk_convit()(torch.randn(1, 3, 32, 30))


def test_it_starts_like_a_convolution() -> None:
    """Nine gated heads are a 3 x 3 kernel: each looks at one neighbour of a patch."""
    model = trunk_convit(LOCALITY_STRENGTH=20.0, NUM_HEADS=9, HIDDEN_DIM=36)
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
    free = trunk_convit(USE_LOCAL_INIT=False).blocks[0].attn
    assert float(free.v.weight.detach().abs().max()) < 0.2
    assert 0 < float(free.pos_proj.weight.detach().std()) < 0.03


def test_options() -> None:
    model = trunk_convit(LOCALITY_STRENGTH=0.0, QK_SCALE=0.7, DROP_PATH_RATE=0.3, DROPOUT_RATE=0.1)
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
        trunk_convit(**wrong)


def test_vissl_names() -> None:
    model = trunk_convit()
    checks.names_round_trip(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in write_vissl(model).items()}
    assert shapes["class_token"] == (1, 1, WIDTH_CONVIT)
    assert shapes["pos_embedding"] == (1, 16, WIDTH_CONVIT)
    assert shapes["blocks.0.attn.alpha"] == (1, HEADS_CONVIT, 1, 1)
    assert shapes["blocks.0.attn.pos_proj.weight"] == (HEADS_CONVIT, 30)
    assert shapes["blocks.3.mlp.linear_2.weight"] == (WIDTH_CONVIT, 50)


# ---- beit


DEPTH_BEIT, WIDTH_BEIT, HEADS_BEIT = 3, 32, 4
# Names of ours, and of timm's.
PLACES: dict[str, tuple[dict[str, bool], dict[str, bool]]] = {
    "embedding": ({}, {}),
    "each block": ({"USE_ABS_POS_EMB": False, "USE_REL_POS_BIAS": True},
                   {"use_abs_pos_emb": False, "use_rel_pos_bias": True}),
    "shared": ({"USE_ABS_POS_EMB": False, "USE_SHARED_REL_POS_BIAS": True},
               {"use_abs_pos_emb": False, "use_shared_rel_pos_bias": True}),
    "all": ({"USE_REL_POS_BIAS": True, "USE_SHARED_REL_POS_BIAS": True},
            {"use_rel_pos_bias": True, "use_shared_rel_pos_bias": True}),
}  # fmt: skip


def trunk_beit(**options: Any) -> Beit:
    torch.manual_seed(0)
    sizes = {
        "HIDDEN_DIM": WIDTH_BEIT, "NUM_LAYERS": DEPTH_BEIT, "NUM_HEADS": HEADS_BEIT, "IMAGE_SIZE": 32,
        "PATCH_SIZE": 8,
    }  # fmt: skip
    return Beit(BeitOptions(**{**sizes, **options}))


def randomised_beit(model: Beit) -> Beit:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def theirs_beit(state: dict[str, Tensor], **options: Any) -> TimmBeit:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH_BEIT, "depth": DEPTH_BEIT}
    arguments |= {"num_heads": HEADS_BEIT, "num_classes": 0, "qkv_bias": False, "global_pool": ""}
    model = TimmBeit(**{**arguments, **options}).eval()
    left = model.load_state_dict(state, strict=False)
    assert not left.unexpected_keys
    assert all(name.endswith("relative_position_index") for name in left.missing_keys)
    return model


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("places", PLACES)
def test_features_are_those_of_timm_beit(places: str, pooled: bool) -> None:
    ours, other = PLACES[places]
    # With layer scale and biases in half of the cases.
    model = randomised_beit(
        trunk_beit(USE_MEAN_POOLING=pooled, QKV_BIAS=pooled, INIT_VALUES=0.1 * pooled, **ours)
    )
    gamma = {"init_values": 0.1} if pooled else {}
    pool = "avg" if pooled else ""
    library = theirs_beit(model.state_dict(), global_pool=pool, qkv_bias=pooled, **gamma, **other)
    x = torch.randn(2, 3, 32, 32)
    found = checks.features(model, (32, 32))
    with torch.no_grad():
        found = dict(zip(model.feature_names, model(x, model.feature_names), strict=True))
        tokens, between = library.forward_intermediates(
            x, return_prefix_tokens=True, norm=True, output_fmt="NLC"
        )
        classes = [prefix[:, 0] for _, prefix in between]
        torch.testing.assert_close(found["lastCLS"], tokens[:, 0])
        for index, each in enumerate(classes):
            torch.testing.assert_close(found[f"blkCLS{index}"], each)
            torch.testing.assert_close(
                found[f"concatCLS{index + 1}"], torch.cat(classes[DEPTH_BEIT - 1 - index :], dim=-1)
            )
        final = library(x) if pooled else tokens[:, 0]
        torch.testing.assert_close(model(x)[0], final)
    assert model.feature_names[-1] == ("lastPOOL" if pooled else "lastCLS")
    mean = tokens[:, 1:].mean(1)
    torch.testing.assert_close(found["lastPOOL"], final if pooled else mean)
    assert not torch.allclose(found["blkCLS0"], found["blkCLS1"])


@pytest.mark.parametrize("places", ["embedding", "shared"])
def test_the_mean_of_normed_patches_is_judged(places: str) -> None:
    """The network of USE_MEAN_POOLING: false; timm has it with use_fc_norm."""
    ours, other = PLACES[places]
    model = randomised_beit(trunk_beit(NORM_BEFORE_POOLING=True, **ours))
    assert model.feature_names[-1] == "lastPOOL"
    token = randomised_beit(trunk_beit(USE_MEAN_POOLING=False, **ours))
    token.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 32, 32)
    final, patches, classes = *model(x), *model(x, ["lastPATCH", "lastCLS"])
    torch.testing.assert_close(final, patches.mean(1))
    for found, expected in zip(token(x, ["lastPOOL", "lastCLS"]), (final, classes), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(theirs_beit(model.state_dict(), **other).forward_features(x)[:, 1:], patches)  # fmt: skip
    final.sum().backward()
    assert model.norm.weight.grad is not None
    assert [*BeitOptions(NORM_BEFORE_POOLING=True, USE_MEAN_POOLING=False).check()]


def test_another_scale_is_that_of_the_queries() -> None:
    model = randomised_beit(trunk_beit(QK_SCALE=0.7, QKV_BIAS=True, **PLACES["all"][0]))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for index in range(DEPTH_BEIT):
        for name in (f"blocks.{index}.attn.qkv.weight", f"blocks.{index}.attn.q_bias"):
            state[name][:WIDTH_BEIT] *= 0.7 * (WIDTH_BEIT // HEADS_BEIT) ** 0.5
    library = theirs_beit(state, global_pool="avg", qkv_bias=True, **PLACES["all"][1])
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x), atol=1e-4, rtol=1e-4)


def test_options_beit() -> None:
    model = trunk_beit(
        DROP_PATH_RATE=0.3, DROPOUT_RATE=0.1, ATTENTION_DROPOUT_RATE=0.2, MLP_RATIO=2.0
    )
    block = model.blocks[-1]
    assert block.drop_path2.drop_prob == pytest.approx(0.3)
    assert (block.mlp.drop1.p, block.mlp.drop2.p, block.attn.proj_drop.p) == (0.0, 0.1, 0.1)
    assert (model.pos_drop.p, block.attn.attn_drop.p) == (0.1, 0.2)
    assert block.mlp.fc1.out_features == 2 * WIDTH_BEIT
    assert block.norm1.eps == 1e-6
    assert block.gamma_1 is None
    assert block.attn.q_bias is None
    scaled = trunk_beit(INIT_VALUES=1e-5).blocks[0]
    assert set(scaled.gamma_1.tolist()) == set(scaled.gamma_2.tolist())
    assert scaled.gamma_2.tolist() == pytest.approx([1e-5] * WIDTH_BEIT)


@pytest.mark.parametrize("places", PLACES)
def test_vissl_names_are_those_of_the_authors_beit(places: str) -> None:
    """timm reads the authors' files, which hold the index of relative positions too."""
    ours, other = PLACES[places]
    model = randomised_beit(
        trunk_beit(QKV_BIAS=True, INIT_VALUES=0.1, USE_MEAN_POOLING=False, **ours)
    )
    checks.names_round_trip(model)
    named = write_vissl(model)
    assert {"norm.bias", "blocks.0.attn.q_bias", "blocks.2.gamma_1", "cls_token"} <= named.keys()
    index = timm.models.beit.gen_relative_position_index((4, 4))
    saved = {**named, "rel_pos_bias.relative_position_index": index}
    saved["blocks.0.attn.relative_position_index"] = index
    assert read_vissl(model, saved).keys() == model.state_dict().keys()
    state = timm.models.beit.checkpoint_filter_fn({"model": saved}, model)
    library = theirs_beit(state, qkv_bias=True, init_values=0.1, **other)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library.forward_features(x)[:, 0])


def test_weights_alone_in_half_precision() -> None:
    """As sharding computes: buffers stay float32."""
    model = trunk_beit(QKV_BIAS=True, INIT_VALUES=0.1, **PLACES["all"][0])
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    (found,) = model(torch.randn(2, 3, 32, 32).bfloat16())
    assert found.dtype is torch.bfloat16
