"""Formats whose libraries are not needed to train: transformers, onnx with onnxruntime."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from sslengine.errors import ExportError
from sslengine.export.formats import find, prepare, prove
from tests.export.subjects import subject, timm_vit

RESNET = {"NAME": "resnet", "RESNETS": {"DEPTH": 18, "WIDTH_MULTIPLIER": 0.125, "STEM": "small"}}


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
        find("onnx").prepare(subject(RESNET), "")


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
    [pytest.param(RESNET, id="resnet"), pytest.param(timm_vit(), id="vit", marks=pytest.mark.slow)],
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
    if trunk is RESNET:
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
