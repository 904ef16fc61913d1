"""VISSL's trunks are networks of timm's and torchvision's, where these have them."""

from __future__ import annotations

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image

from sslengine.errors import ExportError
from sslengine.export.formats import find, prepare, prove
from tests.export.subjects import SIDE, subject, timm_vit

SIZES = {"IMAGE_SIZE": SIDE, "PATCH_SIZE": 8, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 32}
VIT = {**SIZES, "MLP_DIM": 50}
SWIN = {"IMAGE_SIZE": SIDE, "EMBED_DIM": 16, "DEPTHS": [1, 1], "NUM_HEADS": [2, 2],
        "WINDOW_SIZE": 4}  # fmt: skip
RESNET = {"DEPTH": 18, "BLOCKS": [1, 1, 1, 1]}
TRUNKS: dict[str, dict[str, Any]] = {
    "vit": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": VIT},
    "vit with registers": {"NAME": "vision_transformer",
                           "VISION_TRANSFORMERS": {**VIT, "REGISTER_TOKENS": 2,
                                                   "LAYER_SCALE": 0.5}},
    "vit without a class token": {"NAME": "vision_transformer",
                                  "VISION_TRANSFORMERS": {**VIT, "USE_CLASS_TOKEN": False,
                                                          "QKV_BIAS": True, "PROJ_BIAS": False}},
    "swin": {"NAME": "swin_transformer", "SWIN_TRANSFORMER": SWIN},
    "xcit": {"NAME": "xcit", "XCIT": SIZES},
    "beit": {"NAME": "beit", "BEIT": SIZES},
    "beit of the class token": {"NAME": "beit",
                                "BEIT": {**SIZES, "USE_MEAN_POOLING": False, "INIT_VALUES": 0.1,
                                         "QKV_BIAS": True}},
    "convnext": {"NAME": "convnext", "CONVNEXT": {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 16, 24, 32]}},
    "resnet": {"NAME": "resnet", "RESNETS": RESNET},
    "resnext": {"NAME": "resnet",
                "RESNETS": {"BLOCKS": [1, 1, 1, 1], "GROUPS": 4, "WIDTH_PER_GROUP": 16}},
    "torchvision's": {"NAME": "torchvision", "TORCHVISION": {"model": "resnet18"}},
    "timm's": timm_vit(init_values=0.1, reg_tokens=2),
}  # fmt: skip
if "use_fc_norm" in inspect.signature(timm.models.Beit).parameters:  # of newer versions
    NORMED = {**SIZES, "NORM_BEFORE_POOLING": True}
    TRUNKS["beit of normed patches"] = {"NAME": "beit", "BEIT": NORMED}
BANDS = {"vit": 4, "resnet": 1}


@torch.no_grad()
@pytest.mark.parametrize("name", TRUNKS)
def test_timm_makes_the_same_network_of_the_folder(name: str, tmp_path: Path) -> None:
    given = subject(TRUNKS[name], channels=BANDS.get(name, 3))
    prepare(given, "timm").write(tmp_path)
    model: Any = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    (expected,) = given.trunk(given.images)
    torch.testing.assert_close(model(given.images), expected, rtol=1e-5, atol=1e-5)
    assert model.num_features == expected.shape[1]
    assert expected.std(0).max() > 1e-4
    # A new classifier is one argument, as for timm's own weights.
    tuned: Any = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=5).eval()
    torch.testing.assert_close(tuned.forward_features(given.images),
                               model.forward_features(given.images))  # fmt: skip
    config = json.loads((tmp_path / "config.json").read_text())
    assert "model_type" not in config
    assert config["pretrained_cfg"]["input_size"] == [given.channels, SIDE, SIDE]


TORCHVISION: dict[str, tuple[dict[str, Any], int]] = {
    "resnet": ({"NAME": "resnet", "RESNETS": {"DEPTH": 18}}, 3),
    "small stem": ({"NAME": "resnet", "RESNETS": {"DEPTH": 18, "STEM": "small"}}, 3),
    "timm's": ({"NAME": "timm", "TIMM": {"model": "resnet18"}}, 4),
    "mobilenet": ({"NAME": "mobilenetv3_tv"}, 3),
    "its own": ({"NAME": "torchvision", "TORCHVISION": {"model": "shufflenet_v2_x0_5"}}, 3),
}


@torch.no_grad()
@pytest.mark.parametrize("name", TORCHVISION)
def test_the_lines_for_torchvision_make_the_same_network(name: str, tmp_path: Path) -> None:
    trunk, channels = TORCHVISION[name]
    given = subject(trunk, channels)
    made = prepare(given, "torchvision")
    made.write(tmp_path)
    found: dict[str, Any] = {}
    exec(made.usage.replace("{folder}", str(tmp_path)), found)
    assert type(found["model"]).__module__.startswith(torchvision.__name__)
    (expected,) = given.trunk(given.images)
    torch.testing.assert_close(found["model"](given.images), expected, rtol=1e-5, atol=1e-5)


NARROW = {"NAME": "resnet", "RESNETS": {"DEPTH": 18, "WIDTH_MULTIPLIER": 0.0625, "STEM": "small"}}
CHANNELS = {"NAME": "resnet", "RESNETS": {"DEPTH": 18, "CHANNELS": [4, 8, 16, 64]}}
GROUP_NORM = {"NAME": "resnet", "RESNETS": {"DEPTH": 18, "NORM": "GroupNorm"}}
STEM = {"NAME": "vision_transformer", "VISION_TRANSFORMERS": {**VIT, "STEM": "conv"}}
ROPE = {"NAME": "vision_transformer", "VISION_TRANSFORMERS": {**VIT, "ROPE": "centres"}}
SCALED = {"NAME": "vision_transformer", "VISION_TRANSFORMERS": {**VIT, "QK_SCALE": 0.5}}


@pytest.mark.parametrize(
    ("trunk", "to", "why"),
    [
        (NARROW, "timm",
         r"timm has no network like .*config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER 0.0"),
        (NARROW, "torchvision", r"torchvision has no network like .*WIDTH_MULTIPLIER 0.0625"),
        (CHANNELS, "torchvision", r"torchvision has no network like .*CHANNELS \[4, 8, 16, 64\]"),
        (GROUP_NORM, "timm", "NORM GroupNorm"),
        (SCALED, "timm", "with the same weights computes other features"),
        (STEM, "timm", "no network like .*VISION_TRANSFORMERS.STEM conv"),
        (ROPE, "timm", "no network like .*VISION_TRANSFORMERS.ROPE centres"),
        ({"NAME": "regnet", "REGNET": {"name": "regnet_y_400mf"}}, "timm", "no network like"),
        ({"NAME": "vision_transformer", "VISION_TRANSFORMERS": VIT}, "torchvision", "no network"),
        ({"NAME": "torchvision", "TORCHVISION": {"model": "mobilenet_v3_small"}}, "detectron2",
         "of ResNets"),
        (timm_vit(global_pool="avg"), "hf-dinov2", "its feature is not the class token"),
    ],
)  # fmt: skip
def test_what_a_library_does_not_have_is_refused(trunk: dict[str, Any], to: str, why: str) -> None:
    with pytest.raises(ExportError, match=why):
        find(to).prepare(subject(trunk), "")


# ---- Formats whose libraries are not needed to train: transformers, onnx with onnxruntime


RESNET_OTHERS = {
    "NAME": "resnet",
    "RESNETS": {"DEPTH": 18, "WIDTH_MULTIPLIER": 0.125, "STEM": "small"},
}


def test_what_cannot_be_proved_here_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    told = prove(prepare(subject(timm_vit()), "timm"), tmp_path, subject(timm_vit()))
    assert told == [
        {"library": name, "not_proved": f"{name} is not installed here"}
        for name in ("timm", "transformers")
    ]


def test_onnx_asks_for_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ExportError, match=r"install onnx and onnxscript first: .*sslengine\[export"
    ):
        find("onnx").prepare(subject(RESNET_OTHERS), "")


@pytest.mark.slow
@torch.no_grad()
def test_transformers_reads_timms_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    given = subject(timm_vit())
    made = prepare(given, "timm")
    made.write(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    found = model(given.images).pooler_output
    torch.testing.assert_close(found, given.features, rtol=1e-5, atol=1e-5)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert given.pictures is not None
    pixels = processor(Image.fromarray(given.pictures[0]), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixels[0], given.images[0], rtol=0, atol=1e-6)
    assert [each["library"] for each in prove(made, tmp_path, given)] == ["timm", "transformers"]


VITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "as DINOv2's": {"init_values": 0.1, "reg_tokens": 4, "no_embed_class": True, "in_chans": None},
    "interpolated": {"img_size": 48, "dynamic_img_size": True, "qkv_bias": False},
}


@torch.no_grad()
@pytest.mark.parametrize("name", VITS)
def test_transformers_own_dinov2(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    arguments = {key: value for key, value in VITS[name].items() if value is not None}
    given = subject(timm_vit(**arguments))
    prepare(given, "hf-dinov2").write(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    kind = "Dinov2WithRegistersModel" if "reg_tokens" in arguments else "Dinov2Model"
    assert type(model).__name__ == kind
    found = model(given.images).pooler_output
    torch.testing.assert_close(found, given.features, rtol=1e-5, atol=1e-5)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert given.pictures is not None
    pixels = processor(Image.fromarray(given.pictures[0]), return_tensors="pt")["pixel_values"]
    assert pixels.shape[1:] == given.images.shape[1:]
    backbone = getattr(transformers, kind.replace("Model", "Backbone"))
    maps = backbone.from_pretrained(tmp_path)(given.images).feature_maps
    assert maps[-1].shape == (len(given.images), 32, 4, 4)


@pytest.mark.parametrize(
    "trunk",
    [
        pytest.param(RESNET_OTHERS, id="resnet"),
        pytest.param(timm_vit(), id="vit", marks=pytest.mark.slow),
    ],
)
def test_onnx_with_normalised_images_and_with_bytes(trunk: Any, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    given = subject(trunk)
    made = prepare(given, "onnx")
    made.write(tmp_path)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for count in (1, 5):  # of images: the batch is free
        images = given.images[:count].numpy()
        (found,) = session.run(["features"], {"images": images})
        np.testing.assert_allclose(found, given.features[:count], rtol=1e-4, atol=1e-4)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    (found,) = runtime.InferenceSession(tmp_path / "model_uint8.onnx").run(None, {"images": pixels})
    mean, std = np.array(given.preprocessing.mean), np.array(given.preprocessing.std)
    batch = torch.from_numpy(((pixels / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    np.testing.assert_allclose(found, given.compute(batch), rtol=1e-4, atol=1e-4)
    if trunk is RESNET_OTHERS:
        (found,) = session.run(None, {"images": np.ones((1, 3, 40, 56), np.float32)})
        expected = given.compute(torch.ones(1, 3, 40, 56))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    told = prove(made, tmp_path, given)
    assert [each["tolerance"] for each in told] == [1e-4, 1e-4]
    assert json.dumps(told)


@pytest.mark.parametrize("arguments", [{"qk_norm": True}, {"mlp_ratio": 2.5}])
def test_the_proof_finds_what_dinov2_does_not_compute(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    given = subject(timm_vit(**arguments))
    made = prepare(given, "hf-dinov2")
    made.write(tmp_path)
    with pytest.raises(ExportError, match="transformers"):
        prove(made, tmp_path, given)


def test_lightly_trains_what_timm_reads(tmp_path: Path) -> None:
    modules = pytest.importorskip("lightly.models.modules")
    given = subject(timm_vit())
    prepare(given, "timm").write(tmp_path)
    backbone = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    head = modules.SimCLRProjectionHead(backbone.num_features, 16, 8)
    assert head(backbone(given.images)).shape == (16, 8)
