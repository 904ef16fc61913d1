from __future__ import annotations

from typing import Any

import pytest
import timm.models.beit
import torch
from timm.models.beit import Beit as TimmBeit
from torch import Tensor, nn

from sslengine.contrib.trunks.beit import Beit
from sslengine.models.trunks.options import BeitOptions
from sslengine.models.weights.names import read_vissl, write_vissl

from . import checks

DEPTH, WIDTH, HEADS = 3, 32, 4
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


def trunk(**options: Any) -> Beit:
    torch.manual_seed(0)
    sizes = {
        "HIDDEN_DIM": WIDTH, "NUM_LAYERS": DEPTH, "NUM_HEADS": HEADS, "IMAGE_SIZE": 32,
        "PATCH_SIZE": 8,
    }  # fmt: skip
    return Beit(BeitOptions(**{**sizes, **options}))


def randomised(model: Beit) -> Beit:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def theirs(state: dict[str, Tensor], **options: Any) -> TimmBeit:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH, "depth": DEPTH}
    arguments |= {"num_heads": HEADS, "num_classes": 0, "qkv_bias": False, "global_pool": ""}
    model = TimmBeit(**{**arguments, **options}).eval()
    left = model.load_state_dict(state, strict=False)
    assert not left.unexpected_keys
    assert all(name.endswith("relative_position_index") for name in left.missing_keys)
    return model


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("places", PLACES)
def test_features_are_those_of_timm(places: str, pooled: bool) -> None:
    ours, other = PLACES[places]
    # With layer scale and biases in half of the cases.
    model = randomised(
        trunk(USE_MEAN_POOLING=pooled, QKV_BIAS=pooled, INIT_VALUES=0.1 * pooled, **ours)
    )
    gamma = {"init_values": 0.1} if pooled else {}
    pool = "avg" if pooled else ""
    library = theirs(model.state_dict(), global_pool=pool, qkv_bias=pooled, **gamma, **other)
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
                found[f"concatCLS{index + 1}"], torch.cat(classes[DEPTH - 1 - index :], dim=-1)
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
    model = randomised(trunk(NORM_BEFORE_POOLING=True, **ours))
    assert model.feature_names[-1] == "lastPOOL"
    token = randomised(trunk(USE_MEAN_POOLING=False, **ours))
    token.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 32, 32)
    final, patches, classes = *model(x), *model(x, ["lastPATCH", "lastCLS"])
    torch.testing.assert_close(final, patches.mean(1))
    for found, expected in zip(token(x, ["lastPOOL", "lastCLS"]), (final, classes), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(theirs(model.state_dict(), **other).forward_features(x)[:, 1:], patches)  # fmt: skip
    final.sum().backward()
    assert model.norm.weight.grad is not None
    assert [*BeitOptions(NORM_BEFORE_POOLING=True, USE_MEAN_POOLING=False).check()]


def test_a_shared_bias_is_the_same_bias_in_every_block() -> None:
    shared = randomised(trunk(**PLACES["shared"][0]))
    apart = trunk(**PLACES["each block"][0]).eval()
    state = shared.state_dict()
    table = state.pop("rel_pos_bias.relative_position_bias_table")
    state |= {f"blocks.{i}.attn.relative_position_bias_table": table for i in range(DEPTH)}
    apart.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(apart(x)[0], shared(x)[0])
        # And it matters.
        shared.rel_pos_bias.relative_position_bias_table.zero_()
        assert not torch.allclose(apart(x)[0], shared(x)[0], atol=1e-3)


def test_another_scale_is_that_of_the_queries() -> None:
    model = randomised(trunk(QK_SCALE=0.7, QKV_BIAS=True, **PLACES["all"][0]))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for index in range(DEPTH):
        for name in (f"blocks.{index}.attn.qkv.weight", f"blocks.{index}.attn.q_bias"):
            state[name][:WIDTH] *= 0.7 * (WIDTH // HEADS) ** 0.5
    library = theirs(state, global_pool="avg", qkv_bias=True, **PLACES["all"][1])
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x), atol=1e-4, rtol=1e-4)


def test_options() -> None:
    model = trunk(DROP_PATH_RATE=0.3, DROPOUT_RATE=0.1, ATTENTION_DROPOUT_RATE=0.2, MLP_RATIO=2.0)
    block = model.blocks[-1]
    assert block.drop_path2.drop_prob == pytest.approx(0.3)
    assert (block.mlp.drop1.p, block.mlp.drop2.p, block.attn.proj_drop.p) == (0.0, 0.1, 0.1)
    assert (model.pos_drop.p, block.attn.attn_drop.p) == (0.1, 0.2)
    assert block.mlp.fc1.out_features == 2 * WIDTH
    assert block.norm1.eps == 1e-6
    assert block.gamma_1 is None
    assert block.attn.q_bias is None
    scaled = trunk(INIT_VALUES=1e-5).blocks[0]
    assert set(scaled.gamma_1.tolist()) == set(scaled.gamma_2.tolist())
    assert scaled.gamma_2.tolist() == pytest.approx([1e-5] * WIDTH)


@pytest.mark.parametrize("places", PLACES)
def test_vissl_names_are_those_of_the_authors(places: str) -> None:
    """timm reads the authors' files, which hold the index of relative positions too."""
    ours, other = PLACES[places]
    model = randomised(trunk(QKV_BIAS=True, INIT_VALUES=0.1, USE_MEAN_POOLING=False, **ours))
    checks.names_round_trip(model)
    named = write_vissl(model)
    assert {"norm.bias", "blocks.0.attn.q_bias", "blocks.2.gamma_1", "cls_token"} <= named.keys()
    index = timm.models.beit.gen_relative_position_index((4, 4))
    saved = {**named, "rel_pos_bias.relative_position_index": index}
    saved["blocks.0.attn.relative_position_index"] = index
    assert read_vissl(model, saved).keys() == model.state_dict().keys()
    state = timm.models.beit.checkpoint_filter_fn({"model": saved}, model)
    library = theirs(state, qkv_bias=True, init_values=0.1, **other)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library.forward_features(x)[:, 0])


def test_weights_alone_in_half_precision() -> None:
    """As sharding computes: buffers stay float32."""
    model = trunk(QKV_BIAS=True, INIT_VALUES=0.1, **PLACES["all"][0])
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    (found,) = model(torch.randn(2, 3, 32, 32).bfloat16())
    assert found.dtype is torch.bfloat16
