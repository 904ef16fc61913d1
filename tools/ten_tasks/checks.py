"""Read the products of the ten tasks with other libraries: `python checks.py KIND ...`.

sslengine is not imported. A difference is an AssertionError.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

FORMATS = ("PNG",)


def rows_of(table: str) -> tuple[list[str], np.ndarray]:
    """The paths and the features of a table that `embed` wrote."""
    with open(table, newline="") as file:
        head, *rows = csv.reader(file)
    first = head.index("label") + 1 if "label" in head else 1
    return [row[0] for row in rows], np.array([row[first:] for row in rows], np.float32)


def expect_equal(found: Any, expected: Any, tolerance: float = 1e-3) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{found.shape} is not {expected.shape}"
    difference = float(np.abs(found - expected).max())
    assert difference <= tolerance * max(1.0, float(np.abs(expected).max())), difference
    assert float(expected.std(0).max()) > 0, "the features of all images are equal"


def of_timm(folder: str, images: Sequence[Image.Image]) -> np.ndarray:
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        return np.asarray(model(torch.stack([transform(each) for each in images])))


def pictures() -> list[Image.Image]:
    files = sorted(Path("photos").rglob("*.png"))
    return [Image.open(file, formats=FORMATS).convert("RGB") for file in files]


def photos(table: str, folder: str) -> None:
    """Rows are in the order of the files, and are the features that timm computes."""
    paths, features = rows_of(table)
    files = sorted(Path("photos").rglob("*.png"))
    assert [Path(path).resolve() for path in paths] == [file.resolve() for file in files]
    expect_equal(features, of_timm(folder, pictures()))


def parquet(table: str, folder: str) -> None:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table("hub.parquet")["image"].to_pylist()
    images = [Image.open(io.BytesIO(row["bytes"]), formats=FORMATS) for row in rows]
    expect_equal(rows_of(table)[1], of_timm(folder, images))


def bands(table: str, folder: str) -> None:
    import tifffile
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    view = json.loads(Path(folder, "manifest.json").read_text())["view"]
    side, _ = view["crop"]
    inputs = []
    for file in rows_of(table)[0]:
        pixels = tifffile.imread(file).astype(np.float32)
        assert min(pixels.shape[:2]) == view["resize"], "they are made to need no resizing"
        top, left = (round((length - side) / 2) for length in pixels.shape[:2])
        crop = pixels[top : top + side, left : left + side]
        inputs.append((crop - view["mean"]) / view["std"])
    batch = torch.tensor(np.stack(inputs), dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.no_grad():
        expect_equal(rows_of(table)[1], model(batch))


def continued(folder: str) -> None:
    """The trained weights are near those of the file, and are not the same."""
    from safetensors.torch import load_file

    begun, ended = load_file("vits.safetensors"), load_file(f"{folder}/model.safetensors")
    shared = [name for name in ended if name in begun and name != "pos_embed"]
    assert len(shared) > 140, len(shared)
    distances = [float((ended[name] - begun[name]).abs().max()) for name in shared]
    assert 0 < max(distances) < 0.02, max(distances)


def vissl(folder: str) -> None:
    import torchvision

    network = torchvision.models.resnet50()
    network.load_state_dict(torch.load("expected.pth", weights_only=True))
    network.fc = torch.nn.Identity()
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expect_equal(model(images), network.eval()(images))


def same_rows(one: str, other: str) -> None:
    assert rows_of(one)[0] == rows_of(other)[0]
    expect_equal(rows_of(one)[1], rows_of(other)[1])


def onnx(table: str, folder: str) -> None:
    import onnxruntime

    view = json.loads(Path(folder, "manifest.json").read_text())["view"]
    (side, _), crops = view["crop"], []
    for image in pictures():
        left, top = (round((length - side) / 2) for length in image.size)
        crops.append(np.asarray(image.crop((left, top, left + side, top + side))))
    session = onnxruntime.InferenceSession(f"{folder}/model_uint8.onnx")
    (features,) = session.run(["features"], {"images": np.stack(crops)})
    expect_equal(rows_of(table)[1], features)


def completes(words: str) -> None:
    assert "--method" in words.split(), words


CHECKS = (photos, parquet, bands, continued, vissl, same_rows, onnx, completes)

if __name__ == "__main__":
    {each.__name__: each for each in CHECKS}[sys.argv[1]](*sys.argv[2:])
