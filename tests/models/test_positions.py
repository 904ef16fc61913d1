"""Positions and mask tokens of a file's network, where the trunk has others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from sslengine.errors import CheckpointError
from sslengine.models.build import build_model
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.weights.load import init_from_file
from sslengine.models.weights.state import vissl_state
from tests.models.trunks import checks

TRUNKS: dict[str, dict[str, Any]] = {
    "class token": {"NAME": "vision_transformer"},
    "patches alone": {"NAME": "vision_transformer",
                      "VISION_TRANSFORMERS": {"USE_CLASS_TOKEN": False}},
    "convit": {"NAME": "convit", "CONVIT": {"N_GPSA_LAYERS": 1}},
}  # fmt: skip


def _build(which: str, size: int, file: str = "", width: int = 32) -> tuple[Model, ModelOptions]:
    small = {
        "IMAGE_SIZE": size, "PATCH_SIZE": 16, "HIDDEN_DIM": width, "NUM_LAYERS": 2, "NUM_HEADS": 4,
        "MLP_DIM": 64,
    }  # fmt: skip
    options = checks.options(
        {"TRUNK": {"VISION_TRANSFORMERS": small}, "WEIGHTS_INIT": {"PARAMS_FILE": file}},
        {"TRUNK": TRUNKS[which]},
    )
    return build_model(options), options


@pytest.mark.parametrize("size", [32, 112])
@pytest.mark.parametrize("which", TRUNKS)
def test_a_file_for_other_images_makes_what_timm_makes_of_them(
    which: str, size: int, tmp_path: Path
) -> None:
    """timm's forward resizes the embeddings of images that are not of the model's size."""
    source, _ = _build(which, 64)
    torch.nn.init.normal_(source.trunk.pos_embed)
    torch.save(vissl_state(source), tmp_path / "weights.torch")
    model, options = _build(which, size, str(tmp_path / "weights.torch"))
    images = torch.randn(2, 3, size, size)
    init_from_file(model, options)
    assert model.trunk.pos_embed.shape != source.trunk.pos_embed.shape
    expected = source.eval()([images])
    for ours, theirs in zip(model.eval()([images]), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.isfinite(expected[0]).all()


# Swin's last maps are smaller than a window of 7, and their windows with them: 4 of 32 pixels.
RELATIVE: dict[str, dict[str, dict[str, Any]]] = {
    "beit": {"BEIT": {
        "PATCH_SIZE": 8, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 8,
        "USE_REL_POS_BIAS": True, "USE_SHARED_REL_POS_BIAS": True, "USE_ABS_POS_EMB": False,
    }},
    "swin_transformer": {"SWIN_TRANSFORMER": {
        "EMBED_DIM": 8, "DEPTHS": [1, 1], "NUM_HEADS": [2, 2],
    }},
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [(32, 56), (56, 32)])
@pytest.mark.parametrize("which", RELATIVE)
def test_relative_positions_become_what_pillow_makes_of_them(
    which: str, before: int, after: int, tmp_path: Path
) -> None:
    def build(size: int) -> tuple[Model, ModelOptions]:
        sections = {name: {**keys, "IMAGE_SIZE": size} for name, keys in RELATIVE[which].items()}
        file = {"PARAMS_FILE": str(tmp_path / "weights.torch")}
        tree = {"TRUNK": {"NAME": which, **sections}, "WEIGHTS_INIT": file}
        options = checks.options(tree)
        return build_model(options), options

    source, _ = build(before)
    for parameter in source.trunk.parameters():
        torch.nn.init.normal_(parameter)
    torch.save(vissl_state(source), tmp_path / "weights.torch")
    model, options = build(after)
    init_from_file(model, options)
    old, new = source.trunk.state_dict(), model.trunk.state_dict()
    changed = [name for name in new if new[name].shape != old[name].shape]
    assert len(changed) == {"beit": 3, "swin_transformer": 1}[which]
    sides = {32: 2 * 4 - 1, 56: 2 * 7 - 1}
    for name in changed:
        square = old[name][: sides[before] ** 2].unflatten(0, (sides[before], sides[before]))
        for head, ours in enumerate(new[name][: sides[after] ** 2].T):
            picture = Image.fromarray(square[..., head].numpy())
            resized = picture.resize((sides[after], sides[after]), Image.Resampling.BICUBIC)
            torch.testing.assert_close(
                ours, torch.tensor(np.asarray(resized)).flatten(), atol=1e-5, rtol=1e-5
            )
        # Those from and to the class token are no place on the map.
        torch.testing.assert_close(new[name][sides[after] ** 2 :], old[name][sides[before] ** 2 :])
    model([torch.randn(2, 3, after, after)])


def test_those_of_torchvision_too(tmp_path: Path) -> None:
    small = {"patch_size": 16, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    file = tmp_path / "in.pth"
    made = torchvision.models.VisionTransformer(image_size=64, **small)
    made.encoder.pos_embedding.data.normal_()
    torch.save(
        {n: each for n, each in made.state_dict().items() if not n.startswith("heads")}, file
    )
    trunk = {
        "NAME": "torchvision",
        "TORCHVISION": {"model": "small_vit", "arguments": {"image_size": 96}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            torchvision.models._api.BUILTIN_MODELS, "small_vit",
            lambda **given: torchvision.models.VisionTransformer(**{**small, **given}),
        )  # fmt: skip
        options = checks.options(
            {"TRUNK": trunk, "WEIGHTS_INIT": {"PARAMS_FILE": str(file)}},
        )
        model = build_model(options)
    init_from_file(model, options)
    found = dict(model.state_dict())["trunk.encoder.pos_embedding"]
    expected = resample_abs_pos_embed(made.encoder.pos_embedding.detach(), [6, 6])
    torch.testing.assert_close(found, expected)


def test_another_width_is_still_refused(tmp_path: Path) -> None:
    source, _ = _build("class token", 64, width=16)
    torch.save(vissl_state(source), tmp_path / "weights.torch")
    model, options = _build("class token", 32, str(tmp_path / "weights.torch"))
    with pytest.raises(CheckpointError, match=r"trunk.pos_embed: shape \(1, 17, 16\) in the file"):
        init_from_file(model, options)


# ---- The token that hides patches, in files of transformers: loaded if a trunk has one of its
# width.


SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
OURS = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
MASKED = ["data", {"feat_names": ["lastPATCH"], "additional_keys": ["mask"]}]


def started(file: Path, name: str, **arguments: Any) -> Any:
    """A trunk that hides patches, with the weights of the file; its token before that."""
    timm = {"model": name, "arguments": {**OURS, **arguments}}
    tree = {
        "TRUNK": {"NAME": "timm", "TIMM": timm},
        "MULTI_INPUT_HEAD_MAPPING": [MASKED],
        "WEIGHTS_INIT": {"PARAMS_FILE": str(file)},
    }
    options = checks.options(tree)
    model = build_model(options)
    init_from_file(model, options)
    return model.trunk


@torch.no_grad()
def filled(network: nn.Module) -> tuple[nn.Module, Tensor]:
    token = dict(network.named_parameters())[
        next(name for name, _ in network.named_parameters() if name.endswith("mask_token"))
    ]
    token.copy_(torch.arange(16.0).view_as(token))
    return network, token


def test_of_dinov3(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DINOv3ViTConfig(
        **SMALL, image_size=16, patch_size=4, intermediate_size=64, num_register_tokens=4
    )
    network, token = filled(transformers.DINOv3ViTModel(config))
    assert token.shape == (1, 1, 16)
    network.save_pretrained(tmp_path)
    trunk = started(tmp_path, "vit_small_patch16_dinov3_qkvb")
    assert torch.equal(trunk.mask_token.flatten(), token.flatten())


@pytest.mark.parametrize("width", [16, 8])
def test_of_masked_image_modeling(width: int, tmp_path: Path) -> None:
    """One of another width is that of a decoder: MAE's."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=4, intermediate_size=64)
    config.encoder_stride = 4
    network, token = filled(transformers.ViTForMaskedImageModeling(config))
    weights = {**network.state_dict(), "vit.embeddings.mask_token": token[..., :width]}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    trunk = started(tmp_path, "vit_tiny_patch16_224")
    expected = token.flatten() if width == 16 else torch.zeros(16)
    assert torch.equal(trunk.mask_token.flatten(), expected)
