from __future__ import annotations

from typing import Any

import pytest
import timm.models.swin_transformer
import torch
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from timm.models.swin_transformer import WindowAttention

from sslengine.errors import ConfigError
from sslengine.models.trunks.options import SwinTransformerOptions
from sslengine.models.trunks.swin_transformer import SwinTransformer
from sslengine.models.vissl_names import from_vissl, to_vissl

from . import checks


def trunk(**options: Any) -> SwinTransformer:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "IMAGE_SIZE": 64,
        "EMBED_DIM": 16,
        "DEPTHS": [2, 2, 2],
        "NUM_HEADS": [2, 4, 4],
        "WINDOW_SIZE": 4,
    }
    return SwinTransformer(SwinTransformerOptions(**{**sizes, **options}))


def theirs(**options: Any) -> TimmSwin:
    sizes: dict[str, Any] = {
        "img_size": 64,
        "embed_dim": 16,
        "depths": (2, 2, 2),
        "num_heads": (2, 4, 4),
        "window_size": 4,
    }
    return TimmSwin(num_classes=0, **{**sizes, **options})


@pytest.mark.parametrize("size", [(64, 64), (96, 32), (20, 12)])
def test_features_are_those_of_timm(size: tuple[int, int]) -> None:
    """With 20 x 12 pixels there are maps of 5 x 3 and 3 x 2 patches, which are padded."""
    model, library = trunk(QKV_BIAS=False).eval(), theirs(qkv_bias=False, strict_img_size=False)
    library.eval().load_state_dict(model.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        stages = library.forward_intermediates(x, intermediates_only=True)
        found = model(x, model.feature_names)
        last = library.norm(stages[-1].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for feature, expected in zip(found, [*stages, last, library(x), library(x)], strict=True):
            torch.testing.assert_close(feature, expected)


def test_at_its_own_size_it_is_the_fixed_network() -> None:
    model, library = trunk().eval(), theirs().eval()
    library.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))


def test_rates_drop_the_same_in_training() -> None:
    model = trunk(DROP_PATH_RATE=0.3, ATTENTION_DROPOUT_RATE=0.2)
    library = theirs(drop_path_rate=0.3, attn_drop_rate=0.2)
    library.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 64, 64)
    outputs = []
    for each in (model, library):
        torch.manual_seed(3)
        outputs.append(each.train()(x))
    torch.testing.assert_close(outputs[0][0], outputs[1])
    dropping = trunk(DROPOUT_RATE=0.4)
    assert dropping.layers[0].downsample.p == dropping.layers[0].blocks[0].mlp.drop1.p == 0.4


def test_attention_scale() -> None:
    plain, scaled = trunk().eval(), trunk(QK_SCALE=0.7).eval()
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


def test_vissl_names_are_those_of_the_authors() -> None:
    """timm reads the authors' files, whose names VISSL has too, buffers included."""
    model = trunk().eval()
    checks.names_round_trip(model)
    named = to_vissl(model)
    assert "layers.0.downsample.reduction.weight" in named
    assert "layers.2.downsample.reduction.weight" not in named
    library = theirs().eval()
    library.load_state_dict(timm.models.swin_transformer.checkpoint_filter_fn(named, library))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))
    constants = {
        "layers.0.blocks.0.attn.relative_position_index": torch.zeros(16, 16),
        "layers.0.blocks.1.attn_mask": torch.zeros(4, 16, 16),
    }
    back = from_vissl(model, {**named, **constants})
    assert back.keys() == model.state_dict().keys()


@pytest.mark.parametrize("parts", [1, 4])
def test_activation_checkpointing_changes_nothing(parts: int) -> None:
    checks.checkpointing_changes_nothing(trunk(DROP_PATH_RATE=0.3), parts)


def test_features() -> None:
    assert {name: tuple(f.shape) for name, f in checks.features(trunk(), (64, 32)).items()} == {
        "stage1": (2, 16, 16, 8),
        "stage2": (2, 32, 8, 4),
        "stage3": (2, 64, 4, 2),
        "lastMAP": (2, 64, 4, 2),
        "lastCLS": (2, 64),
        "flatten": (2, 64),
    }


def test_images_that_patches_do_not_divide() -> None:
    with pytest.raises(ConfigError, match=r"SWIN_TRANSFORMER\.PATCH_SIZE: 4 does not divide"):
        trunk()(torch.randn(1, 3, 30, 32))
