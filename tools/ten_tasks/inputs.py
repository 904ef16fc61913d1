"""Inputs of the ten tasks, as other programs write them: `python inputs.py KIND`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

# Of an image of each class, 0 to 255. The side is that to which a view of 64 pixels is resized.
LEVELS, EACH, SIDE = {"cats": 60, "dogs": 150}, 8, 73


def photos() -> None:
    draw = np.random.default_rng(0)
    for name, level in LEVELS.items():
        Path("photos", name).mkdir(parents=True)
        for number in range(EACH):
            pixels = draw.normal(level, 30, (SIDE, SIDE + 12, 3)).clip(0, 255)
            file = Path("photos", name, f"{number}.png")
            Image.fromarray(pixels.astype(np.uint8)).save(file)


def bands() -> None:
    import tifffile

    draw = np.random.default_rng(0)
    for name, level in LEVELS.items():
        Path("bands", name).mkdir(parents=True)
        for number in range(EACH):
            pixels = draw.integers(0, 20 * level, (SIDE, SIDE, 4), np.uint16)
            tifffile.imwrite(f"bands/{name}/{number}.tif", pixels, planarconfig="contig",
                             photometric="minisblack")  # fmt: skip


def parquet() -> None:
    """The files' bytes beside their names, as a hub has them."""
    import pyarrow
    import pyarrow.parquet

    photos()
    files = sorted(Path("photos").rglob("*.png"))
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    labels = [file.parent.name for file in files]
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), "hub.parquet")


def timm_weights() -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    photos()
    torch.manual_seed(0)
    save_file(timm.create_model("vit_small_patch16_224").state_dict(), "vits.safetensors")


def vissl_checkpoint() -> None:
    """A ResNet-50 of torchvision's by the names that VISSL's trunk has."""
    import torch
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.resnet50().eval()
    torch.save(network.state_dict(), "expected.pth")
    trunk = {f"_feature_blocks.{name}": value for name, value in network.state_dict().items()
             if not name.startswith("fc.")}  # fmt: skip
    model = {"model": {"trunk": trunk, "heads": {}}}
    torch.save({"classy_state_dict": {"base_model": model}}, "model_final.torch")


if __name__ == "__main__":
    {each.__name__: each for each in (photos, bands, parquet, timm_weights, vissl_checkpoint)}[
        sys.argv[1]
    ]()
