from __future__ import annotations

from typing import Any

import pytest
import timm.models.xcit
import torch
from timm.models.xcit import Xcit as TimmXcit

from sslengine.models.trunks.options import XcitOptions
from sslengine.models.trunks.xcit import Xcit
from sslengine.models.vissl_names import from_vissl, to_vissl

from . import checks

DEPTH, WIDTH, HEADS = 3, 32, 4


def trunk(**options: Any) -> Xcit:
    torch.manual_seed(0)
    sizes = {"HIDDEN_DIM": WIDTH, "NUM_LAYERS": DEPTH, "NUM_HEADS": HEADS, "IMAGE_SIZE": 32}
    return Xcit(XcitOptions(**{**sizes, **options}))


def theirs(**options: Any) -> TimmXcit:
    sizes = {"img_size": 32, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    return TimmXcit(num_classes=0, **{**sizes, "tokens_norm": True, **options})


@pytest.mark.parametrize("size", [(32, 32), (48, 96), (40, 21)])
@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ({}, {}),
        ({"PATCH_SIZE": 8, "MLP_RATIO": 2.0}, {"patch_size": 8, "mlp_ratio": 2.0}),
        ({"TOKENS_NORM": False, "QKV_BIAS": False}, {"tokens_norm": False, "qkv_bias": False}),
        ({"NUM_CLASS_LAYERS": 3}, {"cls_attn_layers": 3}),
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


def test_rates_drop_the_same_in_training() -> None:
    model = trunk(DROP_PATH_RATE=0.3, DROPOUT_RATE=0.2, ATTENTION_DROPOUT_RATE=0.1)
    rates = {"pos_drop_rate": 0.2, "proj_drop_rate": 0.2}
    library = theirs(drop_path_rate=0.3, attn_drop_rate=0.1, **rates)
    library.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 32, 32)
    outputs = []
    for each in (model, library):
        torch.manual_seed(3)
        outputs.append(each.train()(x))
    torch.testing.assert_close(outputs[0][0], outputs[1])


def test_residual_branches_start_small() -> None:
    model = trunk(ETA=1e-5)
    for block in [*model.blocks, *model.cls_attn_blocks]:
        assert float(block.gamma1.detach().max()) == pytest.approx(1e-5)


def test_vissl_names_are_those_of_the_authors() -> None:
    """timm reads the authors' files, whose names VISSL has too."""
    model = trunk().eval()
    checks.names_round_trip(model)
    named = to_vissl(model)
    assert named["cls_attn_blocks.1.attn.qkv.weight"].shape == (3 * WIDTH, WIDTH)
    assert "pos_embeder.token_projection.weight" in named
    library = theirs().eval()
    library.load_state_dict(timm.models.xcit.checkpoint_filter_fn(dict(named), library))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))


def test_a_tensor_that_cannot_be_taken_apart_keeps_its_name() -> None:
    model = trunk()
    named = {**to_vissl(model), "cls_attn_blocks.0.attn.qkv.bias": torch.zeros(5)}
    back = from_vissl(model, named)
    assert "cls_attn_blocks.0.attn.qkv.bias" in back
    assert "cls_attn_blocks.0.attn.q.bias" not in back


@pytest.mark.parametrize("parts", [1, 3])
def test_activation_checkpointing_changes_nothing(parts: int) -> None:
    checks.checkpointing_changes_nothing(trunk(DROP_PATH_RATE=0.3, DROPOUT_RATE=0.1), parts)


def test_layers_are_recomputed_as_asked() -> None:
    for xca in (False, True):
        for attention in (False, True):
            model = trunk(CHECKPOINT_XCA_BLOCK=xca, CHECKPOINT_ATTN_BLOCK=attention)
            assert checks.recomputes(model, model.blocks[1].attn.qkv) is xca
            model = trunk(CHECKPOINT_XCA_BLOCK=xca, CHECKPOINT_ATTN_BLOCK=attention)
            assert checks.recomputes(model, model.cls_attn_blocks[1].attn.q) is attention
